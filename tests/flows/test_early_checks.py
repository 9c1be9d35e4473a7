"""What can be seen to be wrong is said in one line before a server is started, a token sampled or a file written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from prefect.client.schemas.objects import FlowRun

from coderl_tasks.cli.arguments import parse_key_values
from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.journal import atomic
from coderl_tasks.journal.atomic import write_json
from coderl_tasks.planning import flow_plans
from coderl_tasks.planning.early_checks import check_place, deployed_name
from coderl_tasks.planning.flow_plans import plan, plan_curation
from coderl_tasks.problems.problem import Problem, Test, problems_frame
from coderl_tasks.settings import (
    CurateSettings,
    EvaluateSettings,
    FlowSettings,
    PipelineSettings,
    TrainSettings,
    parse_settings,
)
from flows.curate import curate
from flows.evaluate import evaluate
from flows.profile_shard import profile_shard
from flows.train import train
from tests.conftest import Serve

FLOWS: dict[str, tuple[type[FlowSettings | PipelineSettings], tuple[str, ...]]] = {
    "curate": (CurateSettings, ()),
    "train": (TrainSettings, ()),
    "evaluate": (EvaluateSettings, ("checkpoint=data/nano",)),
    "pipeline": (PipelineSettings, ()),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a pool, a file, and data sets with one side only."""
    (tmp_path / "file").touch()
    (tmp_path / "mine.jsonl").write_text('{"statement": "s", "tests": []}\n')
    problem = Problem("held", "own", "s", "", "stdin", "", (Test("", "1"),), 1, 1, None, (), 0)
    problems_frame([problem]).write_parquet(tmp_path / "pool.parquet")
    for side in ("train", "test"):
        folder = tmp_path / f"only-{side}"
        folder.mkdir()
        (folder / f"{side}.jsonl").write_text('{"statement": "s", "tests": []}\n')
    return tmp_path


@pytest.mark.parametrize(
    ("flow", "words", "said"),
    [
        ("curate", ("name=PLACE/file/pool",), "name=.*/file/pool: .*/file is a file: choose another name"),
        ("train", ("log_path=PLACE/file", "pool=PLACE/pool.parquet"), "log_path=.*/file: .*/file is a file"),
        ("evaluate", ("log_path=PLACE/file/x",), "log_path=.*/file/x: .*/file is a file: choose another log_path"),
        ("evaluate", ("log_path=/proc/x/y",), r"/proc cannot be written to \(.*\): choose another log_path"),
        ("pipeline", ("train.log_path=/proc/x/y", "train.pool=PLACE/pool.parquet"), "/proc cannot be written to"),
        ("curate", ("dataset=PLACE/nothing.jsonl",), "nothing.jsonl: no such file or folder"),
        ("curate", ("dataset=PLACE/only-test",), "only-test has no train split"),
        ("curate", ("evaluation_dataset=PLACE/only-train",), "only-train has no test split"),
        ("curate", ("splits=taco,typo",), "has no split typo; there are: "),
        ("train", ("pool=nosuch",), r"pool=nosuch: no such pool, file or folder \(coderl pools lists"),
        ("train", ("dataset=PLACE/only-train", "pool=PLACE/pool.parquet"), "only-train has no test split"),
        ("evaluate", ("dataset=PLACE/only-train",), "only-train has no test split"),
        ("evaluate", ("splits=typo", "dataset=data/mini"), "has no split typo; there are: "),
        ("train", ("dataset=PLACE/mine.jsonl", "pool=PLACE/pool.parquet"), "is one file, .*; eval_every=-1 evaluates"),
        ("pipeline", ("train.dataset=PLACE/mine.jsonl",), "is one file, so its rows would be both trained and"),
        ("train", ("dataset=PLACE/mine.jsonl", "test_share=0.9", "pool=PLACE/pool.parquet"), "has 1 of the problems"),
        ("curate", ("evaluation_dataset=PLACE/mine.jsonl", "test_share=0.9"), "give one of them"),
        ("pipeline", ("curate.dataset=PLACE/only-test",), "only-test has no train split"),
        (
            "evaluate",
            ("compare_to=PLACE/nothing",),
            "compare_to=.*/nothing: there is no such evaluation, folder or run",
        ),
        ("evaluate", ("compare_to=PLACE/only-test",), "there is no finished evaluation in .*/only-test"),
        ("pipeline", ("evaluate.compare_to=PLACE/nothing",), "there is no such evaluation, folder or run"),
    ],
)
async def test_what_is_missing_is_said_first(flow: str, words: tuple[str, ...], said: str, place: Path) -> None:
    settings, more = FLOWS[flow]
    given = [word.replace("PLACE", str(place)) for word in (*words, *more)]
    before = sorted(place.rglob("*"))
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        await plan(parse_settings(settings, parse_key_values(given, settings)))
    assert "\n" not in str(caught.value)
    assert sorted(place.rglob("*")) == before


async def test_a_pipeline_may_compare_with_an_evaluation_that_is_yet_to_be_made(place: Path) -> None:
    words = ["evaluate.compare_to=step-000009", f"train.log_path={place / 'run'}", f"curate.name={place / 'new'}"]
    await plan(parse_settings(PipelineSettings, parse_key_values(words, PipelineSettings)))
    assert not (place / "run").exists()


async def test_a_run_is_evaluated_on_what_its_pool_was_kept_away_from(place: Path) -> None:
    own = str(place / "mine.jsonl")
    settings = {"dataset": own, "evaluation_dataset": None, "test_share": 0.01}
    write_json(place / "manifest.json", {"settings": settings})

    async def side(**given: Any) -> tuple[str, str | None, float | None]:
        planned = await plan(TrainSettings(preset="nano", pool=str(place / "pool.parquet"), **given))
        assert isinstance(planned, TrainSettings)
        return planned.dataset, planned.evaluation_dataset, planned.test_share

    assert await side() == (own, None, 0.01)
    assert await side(dataset="data/mini") == ("data/mini", None, None)
    write_json(place / "manifest.json", {"settings": settings | {"test_share": None}})
    assert await side() == ("data/mini", None, None)
    write_json(place / "manifest.json", {"settings": {"dataset": own, "evaluation_dataset": "data/mini"}})
    assert await side() == (own, "data/mini", None)
    both = place / "both"  # a folder with test splits of its own, which no setting names
    both.mkdir()
    for name in ("train.jsonl", "test.jsonl"):
        shutil.copy(own, both / name)
    files = {"train": [{"file": "train.jsonl"}], "evaluation": [{"file": "test.jsonl"}]}
    manifest = {"settings": {"dataset": str(both)}, "inputs": files}
    write_json(place / "manifest.json", manifest)
    assert await side() == (str(both), None, None)
    assert await side(dataset="data/mini") == ("data/mini", None, None)
    write_json(place / "manifest.json", manifest | {"inputs": {**files, "evaluation": []}})
    assert await side() == ("data/mini", None, None)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, ("mine.jsonl", None, 0.1)),
        ({"dataset": "data/mini"}, ("mini", None, None)),
        ({"evaluation_dataset": "data/mini"}, ("mine.jsonl", "mini", None)),
        ({"test_share": 0.2}, ("mine.jsonl", None, 0.2)),
    ],
)
async def test_an_evaluation_takes_its_runs_side_unless_it_names_one(
    place: Path,
    given: dict[str, Any],
    taken: tuple[str, str | None, float | None],
) -> None:
    run = place / "run"
    run.mkdir()
    config = TrainSettings(preset="nano", dataset=str(place / "mine.jsonl"), test_share=0.1).model_dump(mode="json")
    write_json(run / "config.json", config)
    (run / "checkpoints.jsonl").write_text('{"name": "x", "step": 0, "sampler_path": "tinker://x/y"}\n')
    planned = await plan(EvaluateSettings(checkpoint=str(run), **given))
    assert isinstance(planned, EvaluateSettings)
    sides = [planned.dataset, planned.evaluation_dataset]
    assert (*(side and Path(side).name for side in sides), planned.test_share) == taken
    write_json(run / "config.json", config | {"test_share": None})
    if not given:
        with pytest.raises(
            ConfigError, match=r"mine.jsonl is one file, .*; dataset= names another data set altogether"
        ):
            await plan(EvaluateSettings(checkpoint=str(run)))


@pytest.mark.parametrize("name", ["..", "../../elsewhere", "a/../../b", "/tmp/../x", "."])
async def test_a_pools_name_leads_nowhere_else(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^name=.*: give a name, for a folder below .*/pools, or .* absolute path$"):
        await plan_curation(CurateSettings(preset="nano", name=name))


async def test_a_pool_has_a_name_or_an_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flow_plans, "POOLS", tmp_path / "pools")
    for name, folder in (("mine", "pools/mine"), ("a/b", "pools/a/b"), (str(tmp_path / "own"), "own")):
        assert (await plan_curation(CurateSettings(preset="nano", name=name)))[1] == tmp_path / folder


@pytest.mark.parametrize("setting", ["log_path", "name"])
def test_a_place_whose_name_is_no_text_is_refused(setting: str, tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xfcn"))
    with pytest.raises(ConfigError) as refused:
        check_place(place, setting)
    assert str(refused.value).encode() == (
        f"{setting}={tmp_path}/r\\xfcn is not UTF-8, which Prefect and reports need: choose another {setting}".encode()
    )


async def test_a_disk_without_room_is_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(atomic, "LEAST_FREE", 2**60)
    with pytest.raises(ConfigError, match=r"MiB are free at .*: free some space, or choose another name"):
        await plan(CurateSettings(name=str(tmp_path / "pool")))
    (tmp_path / "pool").mkdir()
    write_json(tmp_path / "pool" / "settings.json", {})
    with pytest.raises(InfraError, match=r"MiB are free at .*: free some space"):  # a deployment's run waits for it
        await plan(CurateSettings(name=str(tmp_path / "pool")))


@pytest.mark.parametrize("flow", ["curate", "train", "evaluate", "profile-shard"])
async def test_no_flow_works_in_a_folder_that_programs_in_the_sandbox_can_read(
    flow: str, servers: None, serve: Serve, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def info(_: web.Request) -> web.Response:
        return web.json_response({"readable": [str(place)]})

    app = web.Application()
    app.router.add_get("/v1/info", info)  # it answers nothing else: a flow that asks for more fails otherwise
    monkeypatch.setenv("SANDBOX_URL", serve(app))
    pool, folder = str(place / "pool.parquet"), str(place / "new")
    started: dict[str, Callable[[], Any]] = {
        "curate": lambda: curate(CurateSettings(preset="nano", name=folder)),
        "train": lambda: train(TrainSettings(preset="nano", pool=pool, log_path=folder)),
        "evaluate": lambda: evaluate(EvaluateSettings(checkpoint="data/nano", preset="nano", log_path=folder)),
        "profile-shard": lambda: profile_shard([pool], folder, CurateSettings(preset="nano")),
    }
    with pytest.raises(ConfigError, match=f"^{folder} lies below {place}, which programs in the sandbox may read"):
        await started[flow]()


def test_flow_runs_that_were_scheduled_together_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def name_of(run: object) -> str | None:
        monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ROOT_FLOW_RUN_ID", str(run))
        return deployed_name()

    assert deployed_name() is None
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    assert name_of("12345678-9abc-4def-8123-456789abcdef") == "run-12345678"  # an earlier version's run goes on
    scheduled = [FlowRun(flow_id=uuid4()).id for _ in range(10)]
    assert len({str(run)[:8] for run in scheduled}) <= 2
    assert len({name_of(run) for run in scheduled}) == 10
    assert name_of(scheduled[0]) == name_of(scheduled[0])
