"""What a command is going to do is settled, its base model too, before anything is started or written."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.cli.arguments import parse_key_values
from coderl_tasks.environments import environment_of
from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.recorded_json import working_in
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import Commit
from coderl_tasks.paths import DATA, POOLS
from coderl_tasks.planning import flow_plans
from coderl_tasks.planning.flow_plans import (
    evaluation_content,
    evaluation_folder,
    evaluations_to_make,
    plan,
    plan_curation,
    plan_evaluation,
    plan_pipeline,
    plan_training,
    run_config,
)
from coderl_tasks.services import Services
from coderl_tasks.settings import (
    CurateSettings,
    EvaluateSettings,
    FlowSettings,
    PipelineSettings,
    TrainSettings,
    parse_settings,
)
from flows.train import steps_note
from tests import warm_start
from tests.conftest import Serve
from tests.environments.test_benchmarks import HUMAN_EVAL, write
from tests.faults.models_proxy import ModelsProxy
from tests.flows.conftest import Coderl, Refused
from tests.flows.run_records import TINY, rows

DEFAULT, TAKEN, OTHER = "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3.5-4B", "Qwen/Qwen3.6-27B"


@pytest.fixture
def proxy(embedded: Services, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelsProxy]:
    """A service that offers two models, the default not among them, named by the environment."""
    proxy = ModelsProxy(str(embedded.tinker_url), dict.fromkeys((OTHER, TAKEN), "data/nano"))
    monkeypatch.setenv("TINKER_BASE_URL", serve(proxy.app()))
    monkeypatch.setenv("TINKER_API_KEY", str(embedded.tinker_api_key))
    before = set(POOLS.glob("*"))
    yield proxy
    assert set(POOLS.glob("*")) == before


@pytest.fixture
def coderl_there(flow_environment: dict[str, str], proxy: ModelsProxy, tmp_path: Path) -> Coderl:
    """Runs `coderl ARGUMENTS` on that service, in a folder where the models' names lead to the nano model."""
    for name in (TAKEN, OTHER):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(DATA / "nano")
    service = {name: os.environ[name] for name in ("TINKER_BASE_URL", "TINKER_API_KEY")}

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        return warm_start.run(flow_environment | service, *arguments, folder=tmp_path)

    return run


def test_a_bare_run_trains_what_is_offered_and_is_refused_once_that_is_retired(
    coderl_there: Coderl, refused: Refused, proxy: ModelsProxy, pool: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    sizes = [size for size in TINY if not size.startswith("eval")]
    done = coderl_there("train", f"pool={pool}", f"log_path={path}", "max_steps=1", "eval_every=-1", *sizes)
    assert done.returncode == 0, done.stderr
    assert f"Model: {TAKEN} (the service does not offer the default, {DEFAULT};" in done.stdout
    assert proxy.asked == 3  # to decide, and by the session for the context's length and for what serves the model
    assert read_json(path / "config.json")["model_name"] == TAKEN
    assert [row["step"] for row in rows(path / "metrics.jsonl")] == [0]

    proxy.models = {DEFAULT: "data/nano", OTHER: "data/nano"}
    before = (path / "config.json").read_bytes()
    service = {name: os.environ[name] for name in ("TINKER_BASE_URL", "TINKER_API_KEY")}
    said = refused("train", f"log_path={path}", "max_steps=2", **service)
    assert f"the run {path} was made with {TAKEN}, which the Tinker service does not offer (near ones" in said
    assert "start a new run (another log_path) with one that it offers" in said
    assert (path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "named", "place"),
    [
        (TrainSettings, "model_name", "log_path"),
        (CurateSettings, "model_name", "name"),
        (PipelineSettings, "train.model_name", "curate.name"),
        (EvaluateSettings, "checkpoint", "log_path"),
    ],
)
async def test_a_misnamed_model_is_one_line_and_nothing_is_written(
    proxy: ModelsProxy, tmp_path: Path, settings: type[FlowSettings] | type[PipelineSettings], named: str, place: str
) -> None:
    words = [f"{named}=qwen/qwen3.5-4b", f"{place}={tmp_path / 'made'}"]
    said = r"^model_name is qwen/qwen3.5-4b, which the Tinker service does not offer \(near ones .*: Qwen/Qwen3.5-4B"
    with pytest.raises(ConfigError, match=said) as caught:
        await plan(parse_settings(settings, parse_key_values(words, settings)))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


async def test_a_run_with_nothing_left_to_do_needs_no_model(proxy: ModelsProxy, run: Path, tmp_path: Path) -> None:
    proxy.models = {OTHER: "data/nano"}
    path = tmp_path / "run"
    shutil.copytree(run, path)
    before = (path / "config.json").read_bytes()
    await plan(parse_settings(TrainSettings, {"log_path": str(path)}))
    assert proxy.asked == 0
    with pytest.raises(ConfigError, match=f"the run {path} was made with data/nano, which .* does not offer"):
        await plan(parse_settings(TrainSettings, {"log_path": str(path), "max_steps": 9}))
    with pytest.raises(ConfigError, match=r"was made with data/nano, .* evaluate it on a service that offers it"):
        await plan_evaluation(parse_settings(EvaluateSettings, {"checkpoint": str(path)}))
    proxy.models["data/nano"] = "data/nano"
    settings, policy = await plan_evaluation(parse_settings(EvaluateSettings, {"checkpoint": str(path)}))
    assert (settings.model_name, policy.run) == ("data/nano", path)
    assert (path / "config.json").read_bytes() == before


async def test_a_base_model_to_evaluate_is_one_that_is_named(proxy: ModelsProxy) -> None:
    settings, policy = await plan_evaluation(EvaluateSettings(checkpoint=OTHER))
    assert (settings.model_name, policy.sampler_path) == (OTHER, None)
    with pytest.raises(ConfigError, match=f"model_name is {DEFAULT}, which"):
        await plan_evaluation(EvaluateSettings(checkpoint=DEFAULT))


async def test_each_side_of_a_deployments_comparison_has_a_folder_that_a_retry_finds_again(
    proxy: ModelsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ROOT_FLOW_RUN_ID", "12345678-9abc-4def-8123-456789abcdef")
    sides = evaluations_to_make(EvaluateSettings(compare=[OTHER, TAKEN]))
    folders = [evaluation_folder(*await plan_evaluation(side)) for side in (*sides, *sides)]
    assert folders[:2] == folders[2:] and folders[0] != folders[1]
    assert all(folder.name.startswith("evaluate-run-12345678-") for folder in folders)


async def test_a_retry_of_a_deployments_evaluation_is_of_what_was_the_latest_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ROOT_FLOW_RUN_ID", "12345678-9abc-4def-8123-456789abcdef")

    def save(name: str, step: int) -> Path:
        run = tmp_path / "code-rl-logs" / name
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / "config.json", TrainSettings(preset="nano").content())
        (run / "checkpoints.jsonl").write_text(
            f'{{"name": "{step}", "step": {step}, "sampler_path": "tinker://{step}"}}\n'
        )
        return run

    older = save("older", 1)
    settings, policy = await plan_evaluation(EvaluateSettings())
    assert (policy.run, policy.step) == (older, 1)
    folder = evaluation_folder(settings, policy)
    with working_in(folder, evaluation_content(settings, policy), instead=""):
        save("older", 2)
        newer = save("newer", 3)
    again = await plan_evaluation(EvaluateSettings())
    assert (again[1], evaluation_folder(*again)) == (policy, folder)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ROOT_FLOW_RUN_ID", "22345678-9abc-4def-8123-456789abcdef")
    assert (await plan_evaluation(EvaluateSettings()))[1].run == newer


async def test_completions_that_have_changed_are_graded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    benchmark = write(tmp_path / "rows.jsonl", HUMAN_EVAL)
    given = write(tmp_path / "samples.jsonl", {"task_id": "HumanEval/901", "completion": "    return x"})
    bare = EvaluateSettings(benchmark=[f"humaneval:{benchmark}"], completions=str(given))
    finished = tmp_path / "code-rl-logs/evals/finished"
    named = bare.with_changes(log_path=str(finished))
    content = evaluation_content(*await plan_evaluation(bare))
    finished.mkdir(parents=True)
    write_json(finished / "summary.json", {"pass_at_1": 0.0, "n": 1, "ci_low": 0.0, "ci_high": 1.0})
    write_json(finished / "settings.json", content)
    assert evaluation_folder(*await plan_evaluation(bare)) == finished
    await plan_evaluation(named)
    write(given, {"task_id": "HumanEval/901", "completion": "    return 2 * x"})
    assert evaluation_folder(*await plan_evaluation(bare)) != finished
    with pytest.raises(ConfigError, match="holds an evaluation with other settings"):
        await plan_evaluation(named)


async def test_an_evaluation_takes_of_its_run_what_says_something_there(
    proxy: ModelsProxy, run: Path, tmp_path: Path
) -> None:
    proxy.models["data/nano"] = "data/nano"
    path = Path(shutil.copytree(run, tmp_path / "run"))

    async def planned(recorded: Mapping[str, object], **given: object) -> EvaluateSettings:
        write_json(path / "config.json", {**read_json(run / "config.json"), **recorded})
        settings, _ = await plan_evaluation(parse_settings(EvaluateSettings, {"checkpoint": str(path), **given}))
        environment_of(settings)
        return settings

    tool = {"environment": "tool", "max_tool_calls": 2}
    assert (await planned(tool)).most_answers == 3
    assert (await planned(tool, environment="tool", max_tool_calls=1)).most_answers == 2
    plain = await planned(tool, environment="code")
    assert (plain.environment, plain.most_answers) == ("code", 1)
    turns = {"max_turns": 3, "feedback": "verdict", "max_trajectory_tokens": 99}
    inherited = await planned(turns, feedback="none")
    assert (inherited.max_turns, inherited.feedback, inherited.max_trajectory_tokens) == (3, "none", 99)
    assert (await planned(turns, max_turns=1)).most_answers == 1
    published = await planned(turns, benchmark="humaneval")
    assert (published.most_answers, published.feedback, published.max_trajectory_tokens) == (1, "samples", None)
    assert (await planned(turns, benchmark="humaneval", max_turns=2)).most_answers == 2
    with_tool = await planned(turns, environment="tool")
    assert (with_tool.most_answers, with_tool.max_trajectory_tokens) == (5, 99)

    form = EvaluateSettings(preset="nano").model_dump(exclude={"checkpoint"})  # the UI's sends every field
    of_run = await planned(turns | {"max_tokens": 77, "test_share": 0.5}, **form)
    assert (of_run.max_turns, of_run.max_tokens, of_run.test_share) == (3, 77, 0.5)
    published = await planned(turns, **form | {"benchmark": ["humaneval"], "n_samples": 2, "temperature": 0.5})
    bare = await planned(turns, benchmark="humaneval", preset="nano", n_samples=2, temperature=0.5)
    assert published.model_dump() == bare.model_dump()


async def test_a_curation_goes_on_with_the_model_that_it_profiles_with(proxy: ModelsProxy, tmp_path: Path) -> None:
    bare = parse_settings(CurateSettings, {"name": str(tmp_path / "pool")})
    settings, folder = await plan_curation(bare)
    assert (settings.model_name, folder) == (TAKEN, tmp_path / "pool")
    assert not folder.exists()
    (folder / "shards/0000/groups").mkdir(parents=True)
    write_json(folder / "shards/0000/groups/request.json", {"policy": OTHER})
    settings, _ = await plan_curation(bare)
    assert (settings.model_name, settings.model_reason) == (OTHER, f"the pool {folder} was made with it")
    proxy.models = {TAKEN: "data/nano"}
    with pytest.raises(ConfigError, match=f"the pool {folder} was made with {OTHER}, .*make another one"):
        await plan_curation(bare)
    settings, _ = await plan_curation(bare.with_changes(model_name=TAKEN))
    assert settings.model_name == TAKEN


async def test_a_curation_without_a_name_goes_on_with_the_unfinished_one_of_its_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(flow_plans, "POOLS", tmp_path)
    settings = CurateSettings(preset="nano", limit=3)

    async def planned(**changes: object) -> Path:
        return (await plan_curation(settings.with_changes(**changes)))[1]

    begun = tmp_path / "begun"
    assert await planned() != begun
    content = (await plan_curation(settings))[0].content()
    with working_in(begun, content, instead=""):
        assert await planned() != begun
    assert await planned() == await planned(readers=2) == begun
    assert await planned(name="another") == tmp_path / "another"
    assert await planned(limit=4) != begun
    write_json(begun / "manifest.json", {"settings": content})
    assert await planned() != begun


async def test_a_run_without_a_name_goes_on_with_the_unfinished_one_of_its_settings(
    monkeypatch: pytest.MonkeyPatch, pool: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(flow_plans, "runs_root", lambda: tmp_path)
    given = {"preset": "nano", "pool": str(pool), "max_steps": "1", "eval_every": "-1"}
    settings = parse_settings(TrainSettings, given)

    async def planned(**changes: object) -> Path | None:
        return (await plan_training(settings.with_changes(**changes)))[2]

    assert await planned() is None
    config = run_config((await plan_training(settings))[0])
    for name in ("older", "begun"):
        with RunDirectory.open(tmp_path / name, config | {"log_path": name, "max_tokens_total": 10**9}) as run:
            assert await planned() != run.path  # this process works there
        os.utime(run.path / "config.json", (len(name), len(name)))
    assert await planned() == await planned(resume="auto") == tmp_path / "older"  # what was noted there does not matter
    os.utime(tmp_path / "begun" / "config.json")
    assert await planned() == await planned(max_tokens_total=10**10, sample_concurrency=3) == tmp_path / "begun"
    found = (await plan_training(settings))[0]
    assert (found.max_tokens_total, found.log_path) == (10**9, None)  # its cap, where none is given, and no more of it
    assert (await plan_training(settings.with_changes(max_tokens_total=None)))[0].max_tokens_total is None
    assert await planned(resume="never") is None
    assert await planned(seed=1) is None
    (tmp_path / "older" / "config.json").write_text("damaged")
    with RunDirectory.open(tmp_path / "begun", config) as run:
        run.step(0).write_commit(Commit(0, {"step": 0}))
    assert await planned() == tmp_path / "begun"
    (tmp_path / "begun" / "checkpoints.jsonl").write_text('{"name": "last", "step": 0}\n')
    assert await planned() is None


async def test_a_finished_pool_is_replaced_only_if_that_is_said(tmp_path: Path) -> None:
    settings = CurateSettings(preset="nano", limit=3, name=str(tmp_path / "pool"))
    (tmp_path / "pool").mkdir()
    write_json(tmp_path / "pool/manifest.json", {"settings": (await plan_curation(settings))[0].content()})
    await plan_curation(settings.with_changes(readers=2))
    other = settings.with_changes(band_low=0.2)
    said = r"is finished, with other settings \(band_low: 0.1 -> 0.2\): .*replace=true makes it again"
    with pytest.raises(ConfigError, match=said):
        await plan_curation(other)
    replaced = (await plan_curation(other.with_changes(replace=True)))[0].content()
    with working_in(tmp_path / "pool", replaced, instead=""):
        await plan_curation(other)  # once begun it goes on
    with pytest.raises(ConfigError, match=r"band_low: 0.1 -> 0.3"):
        await plan_curation(settings.with_changes(band_low=0.3))


@pytest.mark.parametrize(
    ("given", "taken", "asked"),
    [
        ({}, TAKEN, 1),
        ({"evaluate": {"model_name": OTHER}}, OTHER, 1),
        ({"curate": {"model_name": OTHER}, "train": {"model_name": OTHER}}, OTHER, 1),
    ],
)
async def test_the_parts_of_a_pipeline_take_one_model(
    proxy: ModelsProxy, given: dict[str, Any], taken: str, asked: int
) -> None:
    planned = await plan_pipeline(parse_settings(PipelineSettings, given))
    parts = (planned.curate, planned.train, planned.evaluate)
    assert [part.model_name for part in parts] == [taken] * 3
    again = await plan_pipeline(planned)  # by the flow, after the command
    assert [part.model_reason for part in (again.curate, again.train, again.evaluate)] == [parts[1].model_reason] * 3
    assert proxy.asked == asked


async def test_a_pipelines_schedule_may_end_with_the_steps_that_a_service_has_by_default(proxy: ModelsProxy) -> None:
    await plan_pipeline(parse_settings(PipelineSettings, {"train": {"schedule": "cosine:100"}}))
    with pytest.raises(ConfigError, match=r"max_steps=100 goes beyond schedule\.total=99"):
        await plan_pipeline(parse_settings(PipelineSettings, {"train": {"schedule": "cosine:99"}}))


async def test_a_pipeline_that_names_several_models_is_refused(proxy: ModelsProxy) -> None:
    given = {"curate": {"model_name": OTHER}, "train": {"model_name": TAKEN}}
    with pytest.raises(ConfigError, match=f"curate.model_name={OTHER}, train.model_name={TAKEN}"):
        await plan_pipeline(parse_settings(PipelineSettings, given))


async def test_without_a_service_a_bare_pipeline_is_the_nano_one() -> None:
    planned = await plan_pipeline(PipelineSettings())
    for part in (planned.curate, planned.train, planned.evaluate):
        assert (part.model_name, part.dataset, part.model_reason) == ("data/nano", "data/mini", "preset nano")


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("undisturbde", {}, "did you mean {root}/undisturbed? resume=never starts one"),
        ("2026_11_21-10_00_00", {}, "there is no run in {root}/2026_11_21-10_00_00; resume=never starts one"),
        ("physics", {"resume": "must"}, "resume=must: there is no run in {root}/physics"),
        ("undisturbde", {"resume": "must"}, "did you mean {root}/undisturbed?"),
    ],
)
async def test_a_run_that_may_not_be_meant_is_not_started(
    run: Path, pool: Path, name: str, given: dict[str, str], says: str
) -> None:
    settings = {"preset": "nano", "pool": str(pool), "log_path": str(run.parent / name), **given}
    with pytest.raises(ConfigError, match=re.escape(says.format(root=run.parent))) as caught:
        await plan(parse_settings(TrainSettings, settings))
    assert "\n" not in str(caught.value)
    assert not (run.parent / name).exists()


@pytest.mark.parametrize(
    ("name", "given"), [("undisturbde", {"resume": "never"}), ("physics", {}), ("undisturbed2", {})]
)
async def test_a_new_run_is_started_where_it_is_meant(run: Path, pool: Path, name: str, given: dict[str, str]) -> None:
    settings = {"preset": "nano", "pool": str(pool), "log_path": str(run.parent / name), **given}
    await plan(parse_settings(TrainSettings, settings))


@pytest.mark.parametrize(
    ("given", "steps", "said"),
    [
        ({}, 100, "100, as max_steps was not given and a service bills"),
        ({"max_steps": "-1"}, -1, "until it is stopped"),
        ({"max_steps": "7"}, 7, "7"),
        ({"preset": "smoke"}, 50, "50 (preset smoke)"),
    ],
)
async def test_a_run_on_a_service_ends_unless_told_otherwise(
    proxy: ModelsProxy, pool: Path, given: dict[str, str], steps: int, said: str
) -> None:
    settings = await plan(parse_settings(TrainSettings, {"pool": str(pool), **given}))
    again = await plan(settings)  # by the flow, after the command
    for planned in (settings, again):
        assert isinstance(planned, TrainSettings)
        assert (planned.max_steps, planned.content()["max_steps"]) == (steps, steps)
        assert steps_note(planned, resumed=False).startswith(said)


async def test_a_run_that_is_there_is_no_new_one(run: Path, pool: Path) -> None:
    settings = {"preset": "nano", "pool": str(pool), "log_path": str(run), "resume": "never"}
    with pytest.raises(ConfigError, match=r"resume=never: there is a run in .*: choose another log_path, or leave"):
        await plan(parse_settings(TrainSettings, settings))


@pytest.mark.parametrize("max_steps", [-1, 11])
def test_no_step_is_beyond_the_schedule_of_the_learning_rate(tmp_path: Path, max_steps: int) -> None:
    settings = TrainSettings.model_validate({"schedule": "linear:10", "max_steps": max_steps})
    with pytest.raises(ConfigError, match=rf"max_steps={max_steps} goes beyond schedule.total=10, .*max_steps=10"):
        flow_plans.check_training(settings, tmp_path / "run")
