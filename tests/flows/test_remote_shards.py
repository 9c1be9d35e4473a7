"""Shards handed to a deployment: what is put out, which run is waited for."""

import io
from collections.abc import Iterator

import polars as pl
import pytest
from prefect import get_client
from prefect.states import Crashed, Scheduled

from coderl_tasks.addresses import filesystem, joined
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.problems.problem import Problem, Test, read_problem_rows
from coderl_tasks.problems.profile_columns import PROFILE_SCHEMA
from coderl_tasks.runtime.remote_shards import next_key, put_job, read_profile, run_shard
from coderl_tasks.settings import CurateSettings

PROBLEMS = [
    Problem(f"p{n}", "taco", "Add.", "", "stdin", "", (Test("1\n", f"{n}\n"),), 1, 1, None, (), n) for n in range(3)
]
SETTINGS = CurateSettings.model_validate({"preset": "nano"})


@pytest.fixture
def address(s3: str) -> Iterator[str]:
    address = joined(s3, "dispatched", "shards", "0000")
    yield address
    fs, root = filesystem(address)
    if fs.exists(root):
        fs.rm(root, recursive=True)


def test_a_profile_stands_for_its_job_only(address: str) -> None:
    job = put_job(SETTINGS, PROBLEMS, address)
    assert read_problem_rows([f"{address}/problems.parquet"]) == PROBLEMS
    assert read_profile(address) is None
    buffer = io.BytesIO()
    pl.DataFrame(schema=PROFILE_SCHEMA).write_parquet(buffer)
    fs, root = filesystem(address)
    fs.pipe_file(joined(root, "profile.parquet"), buffer.getvalue())
    elsewhere = SETTINGS.with_changes(shards="deployment", shards_in_flight=9, name="other")
    assert put_job(elsewhere, iter(PROBLEMS), address) == job
    assert read_profile(address) is not None
    assert put_job(SETTINGS.with_changes(seed=1), PROBLEMS, address) != job
    assert read_profile(address) is None


def test_a_bucket_that_is_not_there_is_not_made(s3: str) -> None:
    with pytest.raises(DataError, match="s3://bukket/shards"):
        put_job(SETTINGS, PROBLEMS, "s3://bukket/shards")
    assert not filesystem(s3)[0].exists("bukket")


async def test_a_run_at_work_is_waited_for_and_one_that_ended_is_not(prefect_api: str) -> None:
    async with get_client() as client:
        flow_id = await client.create_flow_from_name("a-shard")
        deployment_id = await client.create_deployment(flow_id=flow_id, name="somewhere")
        assert await next_key("job") == "job-0"
        run = await client.create_flow_run_from_deployment(deployment_id, state=Scheduled(), idempotency_key="job-0")
        assert await next_key("job") == "job-0"
        assert await next_key("other") == "other-0"
        await client.set_flow_run_state(run.id, Crashed(), force=True)
        assert await next_key("job") == "job-1"


async def test_a_deployment_that_is_not_there_is_one_line(prefect_api: str, address: str) -> None:
    settings = SETTINGS.with_changes(shard_deployment="profile-shard/nowhere")
    with pytest.raises(ConfigError, match="there is no deployment profile-shard/nowhere: `coderl up`"):
        await run_shard(settings, address, "missing", 0)
