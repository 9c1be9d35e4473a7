"""The examples of docs/python-api.md, run as they stand there."""

import json
import pkgutil
import re
import signal
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import BudgetReachedError, CoderlError, ConfigError, DataError
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.ledger import read_lost
from coderl_tasks.journal.run_directory import RunDirectory, metrics_rows
from coderl_tasks.journal.steps import StepJournal
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.runtime.grpo_session import GrpoSession, init_grpo
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings, all_settings, parse_settings
from coderl_tasks.settings.setting import recipe_names

PAGE = (PROJECT_ROOT / "docs" / "python-api.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
SURFACE = re.findall(
    r"\w+",
    """
should_skip compute_advantages make_datum train_step get_renderer Qwen3InstructRenderer build_question
fetch_live_code_bench_system_prompt LCB_SYSTEM_MESSAGE_GENERIC build_generation_prompt CodeEnv extract_code
sandbox_check_correctness normalize_tests TEST_UTIL TEST_CODE save_checkpoint get_last_checkpoint check_log_dir
setup_logging MultiplexLogger gsm8k_reward_fn build_gsm8k_prompt run_compute_group_normalized_rewards
load_gsm8k_dataset validate_on_test_set init_grpo train_grpo_step sample save finish compute_reward
""",
)
CONFIGURATION = re.findall(
    r"\w+",
    """
model_name base_url lora_rank n_grpo_steps learning_rate rollout_batch_size group_size epochs_per_rollout_batch
train_batch_size advantage_eps use_std_normalization cliprange sampling_temperature sampling_max_tokens
use_r1_zero_format log_path save_every eval_every batch_size max_tokens temperature format_coef reward_timeout max_steps
completions_per_prompt clip_low_threshold clip_high_threshold loss_fn beta1 beta2 eps weight_decay grad_clip_norm
base_model warmup scheduler_total_steps
""",
)
"""Every name of the recipes that a user may look for, and every setting that they configure."""


@pytest.fixture(autouse=True)
def named(embedded: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's servers, named as a user would name the services."""
    monkeypatch.setenv("TINKER_BASE_URL", str(embedded.tinker_url))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))
    monkeypatch.setenv("SANDBOX_URL", embedded.sandbox_urls[0])


def recipe_rows() -> list[tuple[str, str]]:
    """Both columns of the tables of the recipes' names."""
    section = PAGE.partition("## The recipes' names")[2]
    return [(left, right) for left, right in re.findall(r"^\| (.*?) \| (.*) \|$", section, re.M) if "`" in left]


def test_every_name_of_the_recipes_leads_to_something_that_is_there() -> None:
    table = " ".join(" ".join(row) for row in recipe_rows())
    assert [name for name in SURFACE if f"`{name}" not in table] == []
    found = 0
    for left, right in recipe_rows():
        for path in re.findall(r"`((?:coderl_tasks|flows)[\w.]*)`", right):
            target = pkgutil.resolve_name(path)
            found += 1
            if f"the same in `{path}`" in right:
                for name in re.findall(r"`(\w+)`", left):
                    assert hasattr(target, name), (path, name)
    assert found >= 10
    assert all(callable(getattr(GrpoSession, name)) for name in ("train_grpo_step", "sample", "save", "finish"))


@pytest.mark.parametrize("name", CONFIGURATION)
def test_every_setting_of_the_recipes_is_one_or_its_error_names_ours(name: str) -> None:
    ours_now = {*dict(all_settings(TrainSettings)), *recipe_names(TrainSettings)}
    if name in ours_now:
        return
    ours = next(right for left, right in recipe_rows() if re.search(rf"`{name}[=`]", left))
    with pytest.raises(ConfigError, match=f"unknown setting '{name}': ") as error:
        parse_settings(TrainSettings, {name: "1"})
    known = [word for word in re.findall(r"`([\w.]+)", ours) if word in ours_now or word.isupper()]
    assert any(re.search(rf"\b{word}\b", str(error.value)) for word in known), (ours, str(error.value))


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
    StepJournal(run, 2).write_problems(subset)
    with pytest.raises(ConfigError, match=r"step 2 was begun with other problems"):
        grpo.train_grpo_step(grpo.problem_ids[:1])
    with pytest.raises(ConfigError, match="the run has no problem 'unknown'"):
        grpo.train_grpo_step(["unknown"])
    grpo.train_grpo_step(num_iterations=2)
    grpo.close()
    with pytest.raises(CoderlError, match="has ended"):
        grpo.save()
    rows = metrics_rows(run / "metrics.jsonl")
    assert [row["groups_total"] for row in rows] == [4, 4, 2, 8]
    trained = pl.read_parquet(run / "steps" / "000002" / "scored.parquet")["problem_id"]
    assert trained.unique(maintain_order=True).to_list() == subset
    assert "resuming at step 2" in capsys.readouterr().out
    assert (run / "report.html").is_file()


def test_a_session_that_cannot_begin_says_why(tmp_path: Path) -> None:
    row = {"prompt": "Print 1.", "tests": [{"input": "", "output": "1"}]}
    broken = tmp_path / "broken.py"
    broken.write_text("def compute_reward(completion):\n    return 1.0\n")
    nothing = tmp_path / "nothing.py"
    nothing.write_text("def reward(completion, ground_truth):\n    return 1.0\n")
    custom: dict[str, Any] = {"environment": "custom"}
    asked: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "problems is empty"),
        (iter(()), {}, "problems is empty"),
        ("rows.jsonl", {}, "problems is a list of rows"),
        (row, {}, "problems is a list of rows"),
        ([row, 5], {}, r"problems\[1\]: 5 is no row, which is a dict"),
        ([row, {"tests": row["tests"]}], {}, r"problems\[1\]: no text in question, prompt"),
        ([{"prompt": "Print 1."}], {}, r"problems\[0\]: none in tests"),
        ([row, row], {}, r"problems\[0\] and problems\[1\]: two of the problems have one problem_id"),
        ([row], {"learning_rat": 1e-4}, "unknown setting 'learning_rat': did you mean learning_rate"),
        ([row], {"learning_rate": "fast"}, "learning_rate='fast': not a number"),
        ([row], {"log_path": 5}, "log_path=5: must be text"),
        ([row], {"batch_size": 30, "group_size": 8}, "do not divide by 8"),
        ([row], {"reward": "most"}, "reward='most': must be 'binary' or 'fraction'"),
        ([row], custom, "environment=custom needs reward_file"),
        ([{"prompt": "2 + 2?"}], {"reward": compute_reward}, r"problems\[0\]: nothing in ground_truth"),
        ([{"ground_truth": "4"}], {"reward": compute_reward}, r"problems\[0\]: no text in prompt"),
        (QUESTIONS, {"reward": "missing.py"}, "missing.py cannot be read: No such file"),
        (QUESTIONS, {"reward": broken}, "line 1: compute_reward has to take two arguments"),
        (QUESTIONS, {"reward": str(nothing)}, "defines no function compute_reward"),
        (QUESTIONS, {"reward": lambda completion, ground_truth: 1.0}, "it is a lambda"),
        (QUESTIONS, {"reward": compute_reward, "environment": "code"}, "and environment=code: add environment=custom"),
        (QUESTIONS, {"reward": compute_reward, "reward_file": "reward.py"}, "two names of one reward"),
        ([row], {"pool": "latest"}, "give one"),
        ([row], {"max_steps_off_policy": 1}, "max_steps_off_policy"),
        ([row], {"steer": "act"}, "steer=act: in a session the caller decides"),
        ([row], {"refill": 2.0}, "refill: here the caller chooses a step's problems"),
    ]
    for problems, settings, why in asked:
        given: dict[str, Any] = {"preset": "nano", "log_path": str(tmp_path / "run"), **settings}
        with pytest.raises((ConfigError, DataError), match=why) as refusal:
            init_grpo("data/nano", problems=problems, **given)
        assert "\n" not in str(refusal.value), why
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recorded", [{"max_steps_off_policy": 1}, {"refill": 2.0}, {"steer": "act"}])
def test_a_session_does_not_resume_what_it_would_not_begin(tmp_path: Path, recorded: dict[str, Any]) -> None:
    row = {"prompt": "Print 1.", "tests": [{"input": "", "output": "1"}]}
    settings = TrainSettings.model_validate({"preset": "nano", "problems_per_step": 8, **recorded})
    RunDirectory.open(tmp_path / "run", settings.content()).close()
    [name] = recorded
    with pytest.raises(ConfigError, match=f"^{name}"):
        init_grpo(problems=[row], log_path=str(tmp_path / "run"))


def test_an_interrupt_while_a_session_opens_ends_it(tmp_path: Path) -> None:
    row = {"prompt": "Print 1.", "tests": [{"input": "", "output": "1"}]}
    given: dict[str, Any] = {
        "preset": "nano",
        "problems": [row],
        "problems_per_step": 1,
        "log_path": str(tmp_path / "run"),
    }
    lines: list[str] = []

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            interrupt()

    hanging = threading.Timer(60, interrupt)  # else an `init_grpo` that waits for ever would hang the test
    hanging.start()
    with pytest.raises(KeyboardInterrupt):
        init_grpo("data/nano", say=say, **given)
    hanging.cancel()
    assert lines[0].startswith("run directory: ")
    with init_grpo("data/nano", say=lines.append, **given) as grpo:  # which the first one holds no longer
        assert grpo.next_step == 0


QUESTIONS = [{"prompt": f"Say {word}.", "ground_truth": word} for word in ("print", "input", "range", "while")]
PARTS = re.compile(r"[a-z]+")


def share_of_words(text: str) -> float:
    return min(1.0, len(PARTS.findall(text)) / 40)


def compute_reward(completion: str, ground_truth: str) -> float:
    return 1.0 if completion == ground_truth else share_of_words(completion)


def test_a_session_takes_a_function_for_the_reward(tmp_path: Path) -> None:
    given: dict[str, Any] = {"problems": QUESTIONS, "log_path": str(tmp_path / "run"), "completions_per_problem": 4}
    lines: list[str] = []
    nano: dict[str, Any] = {"preset": "nano", "max_tokens_total": 1_000_000}
    with init_grpo("data/nano", reward=compute_reward, say=lines.append, **nano, **given) as grpo:
        truth = dict(zip(grpo.problem_ids, (row["ground_truth"] for row in QUESTIONS), strict=True))
        grpo.train_grpo_step(grpo.problem_ids)
        with pytest.raises(ConfigError, match="prompts is a list"):
            grpo.sample("Say print.")
        with pytest.raises(ConfigError, match="num_samples=0 max_tokens=128 samples nothing"):
            grpo.sample(["Say print."], num_samples=0)
        [texts] = grpo.sample(["Say print."], num_samples=2, max_tokens=4)
        counted = read_lost(tmp_path / "run" / "steps" / "000000")
        assert len(texts) == 2 and 0 < counted.completion <= 8 and counted.prompt == counted.cached > 0
        with pytest.raises(BudgetReachedError, match="max_tokens_total=1000000"):
            grpo.sample(["Say print."], num_samples=10_000)
        with pytest.raises(DataError, match=r"prompts: nothing in ground_truth"):
            grpo.sample([{"prompt": "Say print."}])
        with pytest.raises(ConfigError, match="subset is a list of ids"):
            grpo.train_grpo_step(grpo.problem_ids[0])
        with pytest.raises(ConfigError, match=r"the run has no problem .*prompt"):
            grpo.train_grpo_step([QUESTIONS[0]])  # type: ignore[list-item] # as a user might
    scored = pl.read_parquet(tmp_path / "run" / "steps" / "000000" / "scored.parquet")
    assert scored.height == 16 and scored["reward"].n_unique() > 1 and scored["reward_error"].null_count() == 16
    for row in scored.iter_rows(named=True):
        assert row["reward"] == compute_reward(row["completion"], truth[row["problem_id"]])
    # As a run that `coderl train` began has it. The session evaluates nothing, and leaves the setting as it is.
    config = read_json(tmp_path / "run" / "config.json")
    assert config["eval"]["every"] == -1
    write_json(tmp_path / "run" / "config.json", config | {"eval": config["eval"] | {"every": 7}})
    # The same function again is the same reward: no warning that another one counts from here on.
    with init_grpo(reward=compute_reward, say=lines.append, **given) as grpo:
        assert grpo.next_step == 1
    assert read_json(tmp_path / "run" / "config.json")["eval"]["every"] == 7
    assert "resuming at step 1" in "\n".join(lines) and "changed on resume" not in "\n".join(lines)


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
    journals = [StepJournal(tmp_path / "run", step) for step in (0, 1)]
    problems = [journal.read_problems() for journal in journals]
    assert problems[0] is not None and problems[0].decided == metrics["groups_total"]
    assert problems[1] is not None and (problems[1].ids, problems[1].decided) == (own, 3)
    for journal, recorded in zip(journals, problems, strict=True):
        scored = journal.read("scored")
        assert scored is not None and recorded is not None and recorded.sizes is not None
        heights = scored.group_by("group_index", maintain_order=True).len()["len"].to_list()
        assert heights == recorded.sizes and set(heights) <= {2, 4}


def test_the_training_loop(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 1"]
    assert all(re.search(r"mean reward -?\d\.\d\d, [1-9]\d* datums", line) for line in lines), lines
