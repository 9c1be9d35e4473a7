import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from coderl_tasks.curation.find_pool import FoundPool, find_pool
from coderl_tasks.environments import CODE
from coderl_tasks.environments.environment import CodeEnvironment
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.journal.atomic import write_json
from coderl_tasks.journal.ledger import Budget
from coderl_tasks.journal.recorded_json import check_resume
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit
from coderl_tasks.planning.flow_plans import complete_settings, plan_training, run_config
from coderl_tasks.policy.probe import Probe
from coderl_tasks.problems.problem import Problem, Test, problems_frame, read_pool
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.prompts.renderers import Renderer
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.services import Services
from coderl_tasks.settings import TrainSettings, parse_settings
from coderl_tasks.training.around_steps import needs_probe
from coderl_tasks.training.run import TrainingRun, fitting_problems, recorded_probe, split_validation
from flows.train import leakage_warning, optimizer_steps_note, pool_warning, size_warning, temperature_note


def problems(count: int) -> list[Problem]:
    tests = (Test("1\n", "1\n"),)
    return [
        Problem(f"p{number}", "taco", "Print it.", "", "stdin", "", tests, 1, 1, None, (), number)
        for number in range(count)
    ]


def test_a_pool_is_read_back(tmp_path: Path) -> None:
    problems_frame(problems(3)).write_parquet(tmp_path / "pool.parquet")
    assert [problem.whole() for problem in read_pool(tmp_path / "pool.parquet")] == problems(3)


def test_a_pool_that_is_empty_or_no_pool_is_refused(tmp_path: Path) -> None:
    problems_frame([]).write_parquet(tmp_path / "empty.parquet")
    (tmp_path / "text.parquet").write_text("not parquet")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(ConfigError, match="is empty"):
        read_pool(tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="has no columns problem_id, split, statement"):
        read_pool(tmp_path / "other.parquet")
    problems_frame(problems(1)).drop("kind").write_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="has no column kind:"):
        read_pool(tmp_path / "other.parquet")
    problems_frame(problems(1)).with_columns(tests=pl.lit("[]")).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="column tests is String"):
        read_pool(tmp_path / "other.parquet")
    for name in ("text.parquet", "missing.parquet"):
        with pytest.raises(DataError, match="cannot be read"):
            read_pool(tmp_path / name)


async def test_a_plan_completes_the_settings_and_names_the_pool(tmp_path: Path) -> None:
    problems_frame(problems(2)).write_parquet(tmp_path / "pool.parquet")
    write_json(tmp_path / "manifest.json", {"model_name": "another/model", "kept": 2})
    settings, pool, _ = await plan_training(TrainSettings(pool=str(tmp_path)))
    assert isinstance(pool, FoundPool)
    assert settings.pool == str(tmp_path / "pool.parquet")
    assert settings.model_name == "data/nano"
    warning = pool_warning(pool, settings.model_name)
    assert warning is not None and "profiled with another/model, and data/nano is trained" in warning
    assert pool_warning(pool, "another/model") is None
    assert pool_warning(find_pool(str(tmp_path / "pool.parquet")), "another/model") is None


@pytest.mark.parametrize(
    ("made_with", "given", "apart_from"),
    [
        ({"dataset": "data/mini"}, {}, None),
        ({"dataset": "rows.jsonl", "test_share": 0.1}, {"dataset": "rows.jsonl", "test_share": 0.1}, None),
        ({"dataset": "rows.jsonl", "evaluation_dataset": "data/mini"}, {}, None),
        ({"dataset": "rows.jsonl"}, {"eval_every": -1}, None),
        ({"dataset": "rows.jsonl"}, {}, "rows.jsonl"),
        ({"dataset": "rows.jsonl", "evaluation_dataset": "none"}, {}, "nothing"),
        ({"dataset": "rows.jsonl", "test_share": 0.1}, {}, "rows.jsonl, of which test_share=0.1 is held out"),
        ({"dataset": __file__, "a_setting_that_is_gone": 1}, {}, "nothing"),
    ],
)
def test_a_pool_that_was_not_kept_from_what_is_evaluated_on_is_named(
    made_with: dict[str, Any], given: dict[str, Any], apart_from: str | None
) -> None:
    settings = parse_settings(TrainSettings, {"preset": "nano", **given})
    warning = leakage_warning(FoundPool(Path("pool.parquet"), {"settings": made_with}), settings)
    assert (warning is None) is (apart_from is None)
    assert warning is None or f"it was kept apart from {apart_from} (curate with" in warning
    assert leakage_warning(FoundPool(Path("pool.parquet"), {}), settings) is None


@pytest.mark.parametrize("renderer_name", ["qwen3_instruct", "chat_template"])
async def test_a_plan_refuses_thinking_that_the_model_cannot_switch(tmp_path: Path, renderer_name: str) -> None:
    problems_frame(problems(2)).write_parquet(tmp_path / "pool.parquet")
    settings = {"pool": str(tmp_path / "pool.parquet"), "renderer_name": renderer_name, "thinking": "on"}
    with pytest.raises(ConfigError, match="thinking=on"):
        await plan_training(parse_settings(TrainSettings, settings))


def test_validation_problems_are_held_out_the_same_every_time() -> None:
    settings = TrainSettings.model_validate({"eval": "on:validation,validation_size:3"})
    trained, held_out = split_validation(problems(10), settings)
    assert len(held_out) == 3
    assert sorted(p.problem_id for p in trained + held_out) == [f"p{number}" for number in range(10)]
    again = split_validation(list(reversed(problems(10))), settings)
    assert {p.problem_id for p in again[1]} == {p.problem_id for p in held_out}
    assert split_validation(problems(10), TrainSettings()) == (problems(10), [])
    with pytest.raises(ConfigError, match="leaves nothing"):
        split_validation(problems(3), settings)


def test_what_is_not_given_comes_from_the_directory(tmp_path: Path) -> None:
    saved = TrainSettings(preset="nano", max_steps=7, seed=3).model_dump(mode="json")
    (tmp_path / "config.json").write_text(json.dumps({**saved, "pool_sha256": "x"}))
    settings = complete_settings(parse_settings(TrainSettings, {"max_steps": "9"}), tmp_path)
    assert (settings.max_steps, settings.seed, settings.model_name) == (9, 3, "data/nano")


def test_the_form_of_the_ui_and_the_latest_pool_leave_what_the_directory_says(tmp_path: Path) -> None:
    own = {"learning_rate": 1e-5, "temperature": 0.8, "max_usd": 50, "prices": "prefill:1,sample:2", "seed": 3}
    recorded = TrainSettings.model_validate({"preset": "nano", "pool": "older/pool.parquet", **own}).content()
    (tmp_path / "config.json").write_text(json.dumps(recorded))

    def changes(**given: object) -> dict[str, object]:
        resumed = complete_settings(parse_settings(TrainSettings, given), tmp_path)
        return {change.key: change.new for change in check_resume(recorded, resumed.content()) if change.new}

    form = TrainSettings(preset="nano").model_dump()  # every field
    assert changes(**form) == changes(pool="latest") == {}
    assert changes(**form | {"max_steps": 400, "temperature": 0.7}) == {"max_steps": 400, "temperature": 0.7}
    assert changes(learning_rate="1e-3") == {"learning_rate": 1e-3}  # the preset's, by a command line


def test_a_run_resumes_by_either_pair_of_names_for_its_sizes(tmp_path: Path) -> None:
    problems_frame(problems(2)).write_parquet(tmp_path / "pool.parquet")
    given = {"preset": "nano", "pool": str(tmp_path / "pool.parquet")}
    by_recipe = {**given, "batch_size": "24", "group_size": "3"}
    by_ours = {**given, "problems_per_step": "3", "completions_per_problem": "8"}
    for before, after in ((by_recipe, by_ours), (by_ours, by_recipe), (by_ours, given)):
        recorded = run_config(parse_settings(TrainSettings, before))
        assert (recorded["batch_size"], recorded["group_size"]) == (24, 3)
        (tmp_path / "config.json").write_text(json.dumps(recorded))
        resumed = complete_settings(parse_settings(TrainSettings, after), tmp_path)
        assert check_resume(recorded, run_config(resumed)) == []
    with pytest.raises(ConfigError, match="group_size: 3 -> 4 problems per step"):
        other = complete_settings(parse_settings(TrainSettings, {"problems_per_step": "4"}), tmp_path)
        check_resume(recorded, run_config(other))


def test_the_configuration_knows_the_pool_by_its_content(tmp_path: Path) -> None:
    pool = tmp_path / "pool.parquet"
    problems_frame(problems(2)).write_parquet(pool)
    before = run_config(TrainSettings(pool=str(pool)))
    problems_frame(problems(3)).write_parquet(pool)
    after = run_config(TrainSettings(pool=str(pool)))
    assert {key for key in before if before[key] != after[key]} == {"pool_sha256"}


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_a_temperature_other_than_the_trainers_is_explained(temperature: float) -> None:
    note = temperature_note(temperature)
    if temperature == 1:
        assert note is None
        return
    trainer = np.array([0.9, 0.09, 0.01])
    sampler = trainer ** (1 / temperature) / (trainer ** (1 / temperature)).sum()
    likely, _, unlikely = trainer / sampler
    above, below = ("likely", "unlikely") if likely > 1 > unlikely else ("unlikely", "likely")
    assert note is not None and "\n" not in note
    assert f"above 1 for {above} tokens, below for {below} ones" in note


@pytest.mark.parametrize(
    ("address", "changes", "config", "steps_done", "is_read", "is_needed"),
    [
        ("http://x", {}, {}, 0, True, False),
        ("http://x", {"temperature": 0.9}, {}, 0, False, True),
        ("http://x", {"model_name": "other"}, {}, 0, False, True),
        ("http://y", {}, {}, 0, False, True),
        ("http://y", {}, {}, 1, False, False),
        ("http://y", {"max_steps": 2}, {}, 1, False, True),
        ("http://x", {}, {"probe": None}, 0, False, True),
        ("embedded", {}, {}, 0, False, False),
    ],
)
def test_a_recorded_probe_is_read_for_the_same_service(
    embedded: Services,
    tmp_path: Path,
    address: str,
    changes: dict[str, Any],
    config: dict[str, Any],
    steps_done: int,
    is_read: bool,
    is_needed: bool,
) -> None:
    found = Probe("http://x", "data/nano", 1.0, None, True, True, "returned", 0.01, None, None, 0.0, 300)
    used = embedded if address == "embedded" else Services(address, "tml-x", ("http://z",), 1, ())
    settings = TrainSettings.model_validate({"model_name": "data/nano", "max_steps": 1} | changes)
    renderer = get_renderer("qwen3_instruct", load_tokenizer("data/nano"))
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        directory.config |= {"probe": asdict(found)} | config
        for step in range(steps_done):
            directory.step(step).write_commit(Commit(step, {"step": step}))
        session = Session(used, Judge(SandboxClient(["http://z"])), renderer, 512)
        run = TrainingRun(settings, directory, session, {}, [], [], {})
        run.probe = recorded_probe(run)
        assert run.probe == (found if is_read else None)
        assert needs_probe(run) == is_needed
        assert run.steering is None
        assert TrainingRun(settings.with_changes(steer="act"), directory, session, {}, [], [], {}).steering is not None
        # Nobody asked a service at temperature 1 what its log-probabilities at another one are of.
        assert run.may_raise_temperature == (address == "embedded")
        run.probe = replace(found, logprobs_at="scaled")
        assert run.may_raise_temperature
        run.settings = settings.with_changes(kl="penalty_coef:0.1", temperature=1.0)
        assert not run.may_raise_temperature


@pytest.mark.parametrize(
    ("address", "settings", "steps"),
    [
        ("embedded", {}, [0, 1, 2, 3, 4, 5]),
        ("embedded", {"prices": "prefill:1,sample:1,train:1"}, []),
        ("http://x", {}, []),
        ("http://x", {"kl": "base_every:3"}, [2, 5]),
        ("embedded", {"kl": "base_every:0"}, []),
        ("embedded", {"kl": "penalty_coef:0.1"}, []),
        ("embedded", {"temperature": 0.9}, []),
    ],
)
async def test_the_kl_to_the_base_model_is_measured_where_nobody_bills_it(
    embedded: Services, tmp_path: Path, address: str, settings: dict[str, Any], steps: list[int]
) -> None:
    used = embedded if address == "embedded" else Services(address, "tml-x", ("http://z",), 1, ())
    given = TrainSettings.model_validate({"model_name": "data/nano", **settings})
    renderer = get_renderer("qwen3_instruct", load_tokenizer("data/nano"))
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        session = Session(used, Judge(SandboxClient(["http://z"])), renderer, 512, budget=Budget(given))
        run = TrainingRun(given, directory, session, {}, [], [], {})
        assert [step for step in range(6) if run.measures_kl(step)] == steps


class CountedPrompts(CodeEnvironment):
    """Notes whose prompt is encoded."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def prompt(self, problem: Problem, renderer: Renderer) -> list[int]:
        self.encoded.append(problem.problem_id)
        return super().prompt(problem, renderer)


def test_a_later_start_knows_which_prompts_fit(
    embedded: Services, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renderer = get_renderer("qwen3_instruct", load_tokenizer("data/nano"))
    pool = problems(3)
    pool[1] = replace(pool[1], statement="Print it. " * 100)
    short = len(CODE.prompt(pool[0], renderer))
    judge = Judge(SandboxClient(["http://z"]))

    def fitting(context: int, max_tokens: int = 30) -> tuple[list[str], list[str], list[str]]:
        """The problems that fit, those whose prompts were encoded for that, and what was said."""
        environment = CountedPrompts()
        caplog.clear()
        with RunDirectory.open(tmp_path / "run", {"max_tokens": max_tokens}) as directory:
            session = Session(embedded, judge, renderer, context, environment=environment)
            kept = [problem.problem_id for problem in fitting_problems(session, pool, directory)]
        return kept, environment.encoded, [record.message for record in caplog.records]

    ids = ["p0", "p1", "p2"]
    said = [
        "1 of 3 problems left out: prompt_too_long",
        f"max_tokens=30 is capped for 2 prompts: the context is {short + 20}",
    ]
    assert fitting(short + 20) == (["p0", "p2"], ids, said)
    assert fitting(short + 20) == (["p0", "p2"], [], said)
    assert fitting(short + 20, max_tokens=20) == (["p0", "p2"], ids, said[:1]), "another cap"
    assert fitting(short + 2000, max_tokens=20) == (ids, ids, []), "another context"
    (tmp_path / "run" / "prompts.json").write_text('{"of"')
    assert fitting(short + 2000, max_tokens=20) == (ids, ids, []), "a damaged record"
    (tmp_path / "run" / "prompts.json").write_text('{"of": {}, "other": 1}')
    assert fitting(short + 2000, max_tokens=20) == (ids, ids, []), "a record of something else"
    with pytest.raises(ConfigError, match="no prompt of the pool fits"):
        fitting(short)
    with pytest.raises(ConfigError, match="no prompt of the pool fits"):
        fitting(short)


def test_a_pool_that_is_smaller_than_a_step_is_warned_of() -> None:
    settings = TrainSettings(problems_per_step=8)
    said = size_warning(7, settings)
    assert said is not None and "on 8 groups" in said and "are only 7" in said and "several times" in said
    assert size_warning(8, settings) is None


def test_the_optimizer_steps_of_a_given_train_batch_size_are_said() -> None:
    said = optimizer_steps_note(TrainSettings(train_batch_size=48, epochs_per_rollout_batch=2))
    assert said is not None and "up to 6 optimizer steps: train_batch_size=48 of its 128 completions" in said
    for settings in (TrainSettings(), TrainSettings(train_batch_size=128), TrainSettings(preset="gsm8k")):
        assert optimizer_steps_note(settings) is None, settings.given
