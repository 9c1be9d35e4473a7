"""The error lines of docs/troubleshooting.md are those that commands end with, and its signs those that runs name."""

import re
from pathlib import Path

import pytest

from coderl_tasks.cli import main
from coderl_tasks.insight.warning_signs import RULES
from coderl_tasks.paths import PROJECT_ROOT

PAGE = (PROJECT_ROOT / "docs" / "troubleshooting.md").read_text()
LINES = re.findall(r"^\| `(.+?)` \| ", PAGE[: PAGE.index("## What a run looks like")], re.M)
PROVOKED = {
    "… is not a local model folder": "train model_name=Qwen/Qwen3-4B-Instruct-2507",
    "a Tinker API key starts with": "TINKER_API_KEY=abc train",
    "renderer_name=…": "train renderer_name=qwen4",
    "… is not a setting": "train main --learning_rate 1e-5",
    "unknown setting …": "train learning_rat=1e-5",
    "resume=must: there is no run": "train log_path=none-such resume=must",
    "checkpoint=…: neither": "evaluate checkpoint=none-such preset=nano",
    "there is no run and no pool": "query none-such",
    "pool=…: no such pool": "train pool=none-such preset=nano",
    "pool=…: … is not a finished pool": "train pool=data/mini preset=nano",
    "…: no such file or folder.": "curate preset=nano dataset=none-such.jsonl",
    "lora_rank=…": "train lora_rank=1000000",
}
"""By how its line begins: the command, with what it finds in the environment."""
TESTED = {
    "no answer from Tinker": ("policy/test_reachable.py", "no answer from Tinker at {"),
    "no sandbox has answered": ("grading/test_faults.py", "no sandbox has answered"),
    "…: … of … programs could not": ("training/test_refill.py", "of 12 programs could not be graded"),
    "no isolation for untrusted": ("local_servers/sandbox/test_containment.py", "no isolation for untrusted code here"),
    "…: … of … samples came": ("training/test_step.py", "of 8 samples came without a finite log-probability"),
    "…: compute_reward failed": ("training/test_refill.py", "compute_reward failed on 4 of 12"),
    "…/checkpoints.jsonl is missing": ("flows/test_train.py", "is missing or empty: the policy comes from"),
    "the run was started with": ("journal/test_run_directory.py", "the run was started with"),
    "… is in use by": ("journal/test_unfinished.py", "wait for it, stop it, or choose another name"),
    "… MiB are free": ("flows/test_early_checks.py", "free some space, or choose another name"),
    "… the embedded server is out": ("local_servers/tinker_engine/test_validation.py", "OutOfMemory, match="),
    "… was written by a newer": ("journal/test_run_directory.py", "written by a newer coderl"),
}
"""Those that need servers or a fault: the test that provokes it, and what it looks for."""


def row(beginning: str) -> str:
    """The line of the page that begins so."""
    [found] = [line for line in LINES if line.startswith(beginning)]
    return found


def test_every_line_is_provoked_somewhere() -> None:
    assert sorted(map(row, [*PROVOKED, *TESTED])) == sorted(LINES)


@pytest.mark.parametrize("beginning", PROVOKED)
def test_a_line_is_what_the_command_ends_with(
    beginning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODERL_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINKER_API_KEY", "")
    words = PROVOKED[beginning].split()
    if "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("="))
    assert main(words) == 2
    line = capsys.readouterr().err.splitlines()[-1].removeprefix(f"coderl {words[0]}: ")
    assert re.fullmatch(".*".join(map(re.escape, row(beginning).split("…"))), line), line


@pytest.mark.parametrize(("file", "looks_for"), TESTED.values(), ids=TESTED)
def test_a_line_that_needs_servers_has_a_test(file: str, looks_for: str) -> None:
    assert looks_for in (PROJECT_ROOT / "tests" / file).read_text()


def test_the_signs_are_those_that_runs_name() -> None:
    table = PAGE[PAGE.index("## What a run looks like") :]
    named = {name for cell in re.findall(r"^\| (`[^|]+`) \|", table, re.M) for name in re.findall(r"`([^`]+)`", cell)}
    assert named <= {rule.name for rule in RULES} and len(named) >= 12
