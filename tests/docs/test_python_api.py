"""The examples of docs/python-api.md, run as they stand there."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.journal.metrics import read_metrics
from coderl_tasks.journal.steps import StepJournal
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.runtime.grpo_session import init_grpo
from coderl_tasks.services import Services

EXAMPLES = re.findall(r"^```python\n(.*?)^```", (PROJECT_ROOT / "docs" / "python-api.md").read_text(), re.M | re.S)


@pytest.fixture(autouse=True)
def named(embedded: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's servers, named as a user would name the services."""
    monkeypatch.setenv("TINKER_BASE_URL", str(embedded.tinker_url))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))
    monkeypatch.setenv("SANDBOX_URL", embedded.sandbox_urls[0])


def test_the_session_goes_on_where_a_run_of_the_script_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example, as it stands and then again for more steps; between them a step that was begun is not the
    caller's to change, and ends as it would have."""
    monkeypatch.setenv("HOME", str(tmp_path))  # a run's name is a folder below it
    example = EXAMPLES[0]
    exec(example, {})
    (run,) = (tmp_path / "code-rl-logs").iterdir()
    assert len(re.findall(r"^step    [01]  reward", capsys.readouterr().out, re.M)) == 2
    names: dict[str, Any] = {}
    exec(example[: example.index("while")], names)
    grpo = names["grpo"]
    assert grpo.next_step == 2
    subset = grpo.fresh_subset(2)
    # As after a kill in mid-step: its problems are recorded, and nothing else.
    StepJournal(run / "steps" / "000002", 2).write_problems(subset)
    with pytest.raises(ConfigError, match=r"step 2 was begun with other problems"):
        grpo.train_grpo_step(grpo.problem_ids[:1])
    with pytest.raises(ConfigError, match="the run has no problem 'unknown'"):
        grpo.train_grpo_step(["unknown"])
    grpo.train_grpo_step(num_iterations=2)
    grpo.close()
    with pytest.raises(CoderlError, match="has ended"):
        grpo.save()
    metrics = read_metrics(run / "metrics.jsonl")
    assert metrics["groups_total"].to_list() == [4, 4, 2, 8]
    trained = pl.read_parquet(run / "steps" / "000002" / "scored.parquet")["problem_id"]
    assert trained.unique(maintain_order=True).to_list() == subset
    assert "resuming at step 2" in capsys.readouterr().out
    assert (run / "report.html").is_file()


def test_a_session_that_cannot_begin_says_why(tmp_path: Path) -> None:
    row = {"prompt": "Print 1.", "tests": [{"input": "", "output": "1"}]}
    for problems, settings, why in (
        ([], {}, "problems is empty"),
        ([row, row], {}, "two of the problems have one problem_id"),
        ([row], {"pool": "latest"}, "give one"),
        ([row], {"max_steps_off_policy": 1}, "max_steps_off_policy"),
        ([row], {"steer": "act"}, "steer=act: here the caller decides"),
        ([row], {"refill": 2.0}, "refill: here the caller chooses a step's problems"),
    ):
        with pytest.raises(ConfigError, match=why):
            init_grpo("data/nano", preset="nano", problems=problems, log_path=str(tmp_path / "run"), **settings)
    assert not (tmp_path / "run").exists()


def test_a_session_chooses_of_rows_without_a_profile_by_what_its_steps_have_shown(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (PROJECT_ROOT / "data/mini/taco-train.jsonl").open()][:12]
    sizes: dict[str, Any] = {
        "problems_per_step": 4,
        "completions_per_problem": 4,
        "max_tokens": 64,
        "log_path": str(tmp_path / "run"),
    }
    chosen: dict[str, Any] = {"selection": "adaptive", "first_completions": 2, "preset": "nano"}
    with init_grpo("data/nano", problems=rows, **sizes, **chosen) as grpo:
        metrics = grpo.train_grpo_step()
        own = grpo.problem_ids[:3]
        of_own = grpo.train_grpo_step(own)
    assert metrics["problems_seen"] == 0 and metrics["groups_total"] >= 4
    assert (of_own["groups_total"], of_own["problems_seen"]) == (3, metrics["groups_total"])
    journals = [StepJournal(tmp_path / "run" / "steps" / f"{step:06d}", step) for step in (0, 1)]
    assert [journal.read_decided() for journal in journals] == [metrics["groups_total"], 3]
    assert journals[1].read_problems() == own
    for journal in journals:
        scored = journal.read_scored()
        assert scored is not None
        heights = scored.group_by("group_index", maintain_order=True).len()["len"].to_list()
        assert heights == journal.read_group_sizes() and set(heights) <= {2, 4}


def test_the_training_loop(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 1"]
    assert all(re.search(r"mean reward -?\d\.\d\d, [1-9]\d* datums", line) for line in lines), lines
