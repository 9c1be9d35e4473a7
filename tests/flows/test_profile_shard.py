"""One shard as a flow run, from address to address."""

import asyncio
import io
import json
import os
import subprocess
from pathlib import Path

import fsspec
import polars as pl
import pytest
from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from sampling_gateway import Gateway

from coderl_tasks.addresses import filesystem, joined
from coderl_tasks.curation.tasks import ALL_ALIKE
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems import load_problems
from coderl_tasks.problems.problem import Problem, problems_frame
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.runtime.remote_shards import Job, put_job, read_profile
from coderl_tasks.settings import CurateSettings
from flows.profile_shard import LIMITS, profile_shard
from tests.warm_start import Command


def in_a_process(arguments: list[str]) -> None:
    async def profiled(problems: str, output: str, settings: str) -> None:
        await profile_shard([problems], output, json.loads(settings))  # pyrefly: ignore[not-async]

    asyncio.run(profiled(*arguments))


def some_problems(settings: CurateSettings) -> list[Problem]:
    return load_problems(settings.dataset, role="train", limit=6, max_tests=settings.max_tests).problems


async def test_a_shard_is_profiled_once(servers: None) -> None:
    settings = CurateSettings.model_validate({"preset": "nano", "profile_samples": 2, "max_tests": 2})
    problems = some_problems(settings)
    fs = fsspec.filesystem("memory")
    with fs.open("/profiled/problems.parquet", "wb") as file:
        problems_frame(problems).write_parquet(file)
    addresses, output = ["memory://profiled/problems.parquet"], "memory://profiled/shards/0000"
    assert await profile_shard(addresses, output, settings, start=2, count=3) == 3  # pyrefly: ignore[not-async]
    written = {path: fs.modified(path) for path in fs.find("/profiled/shards")}
    profile = pl.read_parquet(io.BytesIO(fs.cat_file("/profiled/shards/0000/profile.parquet")))
    assert profile["problem_id"].to_list() == [problem.problem_id for problem in problems[2:5]]
    assert profile.schema == pl.Schema(SHARD_SCHEMA)

    async with get_client() as client:
        for limit in LIMITS:
            await client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=limit, limit=1))
        assert await profile_shard(addresses, output, settings, start=2, count=3) == 3  # pyrefly: ignore[not-async]
        taken = [(await client.read_global_concurrency_limit_by_name(limit)).active_slots for limit in LIMITS]
        for limit in LIMITS:
            await client.delete_global_concurrency_limit_by_name(limit)
    assert taken == [0, 0]  # given back
    again = {path for path in fs.find("/profiled/shards") if fs.modified(path) != written.get(path)}
    assert again == {"/profiled/shards/0000/profile.parquet"}  # the record was found, and nothing done again
    fs.rm("/profiled", recursive=True)


async def test_another_machine_goes_on_where_one_was_killed_and_samples_nothing_recorded_again(
    servers: None,
    s3: str,
    flow_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    settings = CurateSettings.model_validate(
        {"preset": "nano", "profile_mode": "fixed", "profile_samples": 4, "profile_round": 2, "max_tests": 2}
    )
    problems = some_problems(settings)
    rounds = {seed_for(0, "profile", number, problem.problem_id) for problem in problems for number in range(2)}
    address = joined(s3, "killed", "0000")
    job = put_job(settings, problems, ALL_ALIKE.to_json(), address)
    gateway = Gateway(flow_environment["TINKER_BASE_URL"])
    with gateway.serving():
        # Two rounds a problem, and so many answered that two problems at least are done, and not all of them.
        gateway.most = len(problems) + 2
        before = killed_in_the_middle(settings, job, address, gateway, flow_environment, tmp_path)
        assert before < rounds
        assert read_profile(address, job) is None
        monkeypatch.setitem(os.environ, "TINKER_BASE_URL", gateway.url)
        gateway.seeds, gateway.most = [], None
        shard = profile_shard([joined(address, job.problems)], address, settings, job=job.key)
        assert await shard == len(problems)  # pyrefly: ignore[not-async]
    assert sorted(gateway.seeds) == sorted(rounds - before)
    profile = read_profile(address, job)
    assert profile is not None
    assert profile["problem_id"].to_list() == [problem.problem_id for problem in problems]
    assert profile["n_samples"].to_list() == [4] * len(problems)


def killed_in_the_middle(
    settings: CurateSettings, job: Job, address: str, gateway: Gateway, environment: dict[str, str], home: Path
) -> set[int]:
    """Start a run in a process of its own, kill it once two problems are recorded at `address` and `gateway` answers
    no more; the seeds of the rounds that are recorded then."""
    arguments = [joined(address, job.problems), address, json.dumps(settings.model_dump(mode="json"))]
    given = os.environ | environment | {"TINKER_BASE_URL": gateway.url, "CODERL_HOME": str(home)}
    process = Command(given, *arguments, main=in_a_process)
    try:
        assert gateway.most is not None
        assert gateway.wait_for(gateway.most, process), process.communicate()[1]
        while len(recorded(address)) < 4:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
    finally:
        process.kill()
        process.wait()
    return recorded(address)


def recorded(address: str) -> set[int]:
    """The seeds of the rounds recorded at `address`."""
    fs, root = filesystem(address)
    fs.invalidate_cache()
    seeds = set()
    for file in fs.glob(joined(root, "groups", "*.parquet")):
        found = pl.read_parquet(io.BytesIO(fs.cat_file(file)), columns=["problem_id", "attempt"]).unique()
        seeds |= {seed_for(0, "profile", number, name) for name, number in found.iter_rows()}
    return seeds
