"""Shards handed to a deployment: what is put out, which run is waited for."""

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import polars as pl
import pytest
from prefect import flow, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelled, Crashed, Scheduled
from prefect.utilities.callables import parameter_schema

from coderl_tasks.addresses import filesystem, joined
from coderl_tasks.curation.tasks import ALL_ALIKE, Asked
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.ledger import Budget
from coderl_tasks.problems.problem import Problem, Test, read_problem_rows
from coderl_tasks.problems.profile_columns import PROFILE_SCHEMA, SHARD_SCHEMA
from coderl_tasks.runtime import remote_shards
from coderl_tasks.runtime.display import Display
from coderl_tasks.runtime.remote_shards import (
    Job,
    RemoteShards,
    key_of_run,
    profile_remotely,
    put_job,
    read_asked,
    read_profile,
    run_shard,
)
from coderl_tasks.settings import CurateSettings
from flows.profile_shard import profile_shard

PROBLEMS = [
    Problem(f"p{n}", "taco", "Add.", "", "stdin", "", (Test("1\n", f"{n}\n"),), 1, 1, None, (), n) for n in range(3)
]
ALIKE = ALL_ALIKE.to_json()
SETTINGS = CurateSettings.model_validate({"preset": "nano"})


@pytest.fixture
def address(s3: str) -> Iterator[str]:
    address = joined(s3, "dispatched", "shards", "0000")
    yield address
    fs, root = filesystem(address)
    if fs.exists(root):
        fs.rm(root, recursive=True)


def test_a_profile_stands_for_its_job_only(address: str) -> None:
    job = put_job(SETTINGS, PROBLEMS, ALIKE, address)
    assert read_problem_rows([f"{address}/{job.problems}"]) == PROBLEMS
    assert read_profile(address, job) is None
    buffer = io.BytesIO()
    pl.DataFrame(schema=PROFILE_SCHEMA).write_parquet(buffer)
    fs, root = filesystem(address)
    fs.pipe_file(joined(root, job.profile), buffer.getvalue())
    elsewhere = SETTINGS.with_changes(shards="deployment", shards_in_flight=9, name="other")
    assert put_job(elsewhere, iter(PROBLEMS), ALIKE, address) == job
    assert read_profile(address, job) is not None
    others = [
        put_job(SETTINGS.with_changes(seed=1), PROBLEMS, ALIKE, address),
        put_job(SETTINGS, PROBLEMS[1:], ALIKE, address),
        put_job(SETTINGS, PROBLEMS, Asked(sampled=frozenset({"p1"})).to_json(), address),
    ]
    assert len({job, *others}) == 4
    assert all(read_profile(address, other) is None for other in others)
    assert read_problem_rows([f"{address}/{others[1].problems}"]) == PROBLEMS[1:], "each has its own problems"
    assert read_problem_rows([f"{address}/{job.problems}"]) == PROBLEMS
    assert Asked.from_json(read_asked(address, others[2].key)) == Asked(sampled=frozenset({"p1"}))


def test_a_bucket_that_is_not_there_is_not_made(s3: str) -> None:
    with pytest.raises(DataError, match="s3://bukket/shards"):
        put_job(SETTINGS, PROBLEMS, ALIKE, "s3://bukket/shards")
    assert not filesystem(s3)[0].exists("bukket")


async def test_a_run_at_work_is_waited_for_and_one_that_ended_is_not(prefect_api: str) -> None:
    async with get_client() as client:
        flow_id = await client.create_flow_from_name("a-shard")
        deployment_id = await client.create_deployment(flow_id=flow_id, name="somewhere")
        assert await key_of_run("job") == "job-0"
        run = await client.create_flow_run_from_deployment(deployment_id, state=Scheduled(), idempotency_key="job-0")
        assert await key_of_run("job") == "job-0"
        assert await key_of_run("other") == "other-0"
        await client.set_flow_run_state(run.id, Crashed(), force=True)
        assert await key_of_run("job") == "job-1"


def elsewhere(here: Callable[..., Awaitable[None]], **changes: str) -> RemoteShards:
    return RemoteShards(SETTINGS.with_changes(**changes), Display(), Budget(), here)


async def not_here(number: int, address: str, *others: object) -> None:
    raise AssertionError(f"shard {number} is profiled here")


async def test_a_deployment_that_is_not_there_is_one_line(prefect_api: str, address: str) -> None:
    nowhere = elsewhere(not_here, shard_deployment="profile-shard/nowhere")
    with pytest.raises(ConfigError, match="there is no deployment profile-shard/nowhere: `coderl up`"):
        await run_shard(nowhere, address, Job("missing", ""), 0, {})


async def test_a_deployments_schema_takes_settings_without_a_preset_and_a_refused_run_is_one_line(
    prefect_api: str, tmp_path: Path
) -> None:
    schema = parameter_schema(profile_shard).model_dump_for_openapi()
    job = Job("strict", "problems.parquet")
    async with get_client() as client:
        flow_id = await client.create_flow_from_name("profile-shard")
        for name, checked in (("checked", schema), ("other", schema | {"required": ["what nobody sends"]})):
            await client.create_deployment(
                flow_id, name, parameter_openapi_schema=checked, enforce_parameter_schema=True
            )
    remote = elsewhere(not_here, shard_deployment="profile-shard/other")
    with pytest.raises(ConfigError, match=r"refuses a run of profile-shard/other \(HTTP 409\): .*what nobody sends"):
        await run_shard(remote, str(tmp_path), job, 7, {})

    remote.settings = CurateSettings.model_validate({"shard_deployment": "profile-shard/checked"})
    running = asyncio.create_task(run_shard(remote, str(tmp_path), job, 7, {}))
    of_shard = FlowRunFilter(name=FlowRunFilterName(any_=["shard-0007"]))
    async with get_client() as client:
        while not (runs := await client.read_flow_runs(flow_run_filter=of_shard)) and not running.done():
            await asyncio.sleep(0.1)
        for run in runs:
            assert CurateSettings.model_validate(run.parameters["settings"]).preset is None
            await client.set_flow_run_state(run.id, Cancelled(), force=True)
    assert (await running).is_cancelled()


async def test_a_shard_that_was_cancelled_or_that_nobody_takes_up_is_profiled_all_the_same(
    prefect_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with get_client() as client:
        await client.create_deployment(await client.create_flow_from_name("profile-shard"), "without-a-worker")
    monkeypatch.setattr(remote_shards, "TAKE_UP_S", 3.0)
    monkeypatch.setattr(remote_shards, "POLL_S", 0.1)
    profiled = pl.DataFrame(schema=SHARD_SCHEMA)

    async def here(number: int, address: str, result: str, caps: object) -> None:
        profiled.write_parquet(Path(address) / result)

    async def runs_of(states: list[StateType]) -> list[UUID]:
        of_state = FlowRunFilterState(type=FlowRunFilterStateType(any_=states))
        named = FlowRunFilter(name=FlowRunFilterName(any_=["shard-0000"]), state=of_state)
        async with get_client() as client:
            runs = await client.read_flow_runs(flow_run_filter=named)
            return [run.id for run in runs if run.parameters["output"].startswith(str(tmp_path))]

    @flow
    async def curation() -> pl.DataFrame:
        remote = elsewhere(here, shard_deployment="profile-shard/without-a-worker")
        return await profile_remotely(remote, {0: (PROBLEMS, ALIKE)}, tmp_path)

    dispatching = asyncio.create_task(curation())
    while not (first := await runs_of([StateType.SCHEDULED])):
        await asyncio.sleep(0.5)
    async with get_client() as client:
        await client.set_flow_run_state(first[0], Cancelled(message="by a person"), force=True)
    assert (await dispatching).equals(profiled)
    assert len(await runs_of([StateType.CANCELLED])) == 2  # the second one was withdrawn
    said = capfd.readouterr().out
    assert "shard 0: its run is Cancelled (by a person): another run profiles it" in said
    assert "shard 0: no worker has taken it up for 3 s: it is profiled here" in said
