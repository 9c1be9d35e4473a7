"""One shard as a flow run, from address to address."""

import inspect
import io
import os

import fsspec
import polars as pl
import pytest
from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.logging.handlers import APILogWorker

from coderl_tasks.problems import PROFILE_SCHEMA, load_problems, problems_frame
from coderl_tasks.settings import CurateSettings
from flows.profile_shard import LIMITS, profile_shard


async def test_a_shard_is_profiled_once(flow_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "SANDBOX_URL"):
        monkeypatch.setitem(os.environ, name, flow_environment[name])
    settings = CurateSettings.model_validate({"preset": "nano", "profile_samples": 2, "max_tests": 2})
    problems = load_problems(settings.dataset, role="train", limit=6, max_tests=2).problems
    fs = fsspec.filesystem("memory")
    with fs.open("/profiled/problems.parquet", "wb") as file:
        problems_frame(problems).write_parquet(file)
    addresses, output = ["memory://profiled/problems.parquet"], "memory://profiled/shards/0000"
    assert await profile_shard(addresses, output, settings, start=2, count=3) == 3
    written = {path: fs.modified(path) for path in fs.find("/profiled/shards")}
    profile = pl.read_parquet(io.BytesIO(fs.cat_file("/profiled/shards/0000/profile.parquet")))
    assert profile["problem_id"].to_list() == [problem.problem_id for problem in problems[2:5]]
    assert profile.schema == pl.Schema(PROFILE_SCHEMA)

    async with get_client() as client:
        for limit in LIMITS:
            await client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=limit, limit=1))
        assert await profile_shard(addresses, output, settings, start=2, count=3) == 3
        taken = [(await client.read_global_concurrency_limit_by_name(limit)).active_slots for limit in LIMITS]
    assert taken == [0, 0]  # given back
    again = {path for path in fs.find("/profiled/shards") if fs.modified(path) != written.get(path)}
    assert again == {"/profiled/shards/0000/profile.parquet"}  # the record was found, and nothing done again
    fs.rm("/profiled", recursive=True)
    drained = APILogWorker.drain_all(timeout=30)  # while the server they go to is there
    if inspect.isawaitable(drained):
        await drained
