"""Shards of a curation profiled by runs of a deployment: on whatever machines its work pool has workers.

    <address>/<pool>/shards/0003/problems.parquet   the shard's problems
                                 job.json           what is to be done with them
                                 ...                the record of the run that does it (see `curation.profile`)
                                 profile.parquet    its result, written last

A shard whose profile is there is done. A run that is still at work when a curation is started again is waited for, and
not started a second time.
"""

import asyncio
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl
from prefect import get_client, task
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.utilities.annotations import quote

from coderl_tasks.addresses import explained, filesystem, joined, make_folder_at
from coderl_tasks.errors import CoderlError, ConfigError, InfraError
from coderl_tasks.problems.problem import Problem, problems_frame
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.retries import PHASE
from coderl_tasks.runtime.display import Display
from coderl_tasks.settings import CurateSettings

PROBLEMS, JOB, PROFILE = "problems.parquet", "job.json", "profile.parquet"
MOST_TRIES = 100
POLL_S = 2.0


async def profile_elsewhere(
    settings: CurateSettings, shards: Sequence[Iterable[Problem]], folder: Path, display: Display
) -> pl.DataFrame:
    """Profile all shards by runs of a deployment, `shards_in_flight` at a time. Returns one frame (SHARD_SCHEMA) in the
    order of the shards. They are exchanged below `shard_address`, or without it in the pool's `folder`."""
    own = str(folder.resolve())
    address = own if settings.shard_address is None else joined(settings.shard_address, folder.name)
    slots = asyncio.Semaphore(settings.shards_in_flight)
    done = 0
    async with display.bar(f"{len(shards)} shards as runs of {settings.shard_deployment}") as on_progress:

        async def profiled(number: int) -> pl.DataFrame:
            nonlocal done
            async with slots:
                place = joined(address, "shards", f"{number:04d}")
                # quote: Prefect would look through every problem of the shard for results of other tasks.
                frame = await dispatch(settings, quote(shards[number]), place, number)
            done += 1
            on_progress(done, len(shards))
            return frame

        frames = await asyncio.gather(*(profiled(number) for number in range(len(shards))))
    return pl.concat([pl.DataFrame(schema=SHARD_SCHEMA), *frames])


@task(name="dispatch", task_run_name="dispatch-shard-{number}", **PHASE)
async def dispatch(settings: CurateSettings, problems: Iterable[Problem], address: str, number: int) -> pl.DataFrame:
    """The profile of one shard, from the deployment's run that makes it; nothing is run if it is there."""
    job = await asyncio.to_thread(put_job, settings, problems, address)
    profile = await asyncio.to_thread(read_profile, address)
    if profile is None:
        await run_shard(settings, address, job, number)
        profile = await asyncio.to_thread(read_profile, address)
    if profile is None:
        raise CoderlError(f"shard {number}: its run left no {joined(address, PROFILE)}: can the worker write there?")
    return profile


def put_job(settings: CurateSettings, problems: Iterable[Problem], address: str) -> str:
    """Put the shard's problems and job where the worker finds them, if they are not there; the job's hash."""
    buffer = io.BytesIO()
    problems_frame(list(problems)).write_parquet(buffer, compression="zstd")
    problems_sha256 = hashlib.sha256(buffer.getvalue()).hexdigest()
    job = json.dumps({"problems": problems_sha256, "settings": settings.content()}).encode()
    fs, root = filesystem(address)
    with explained(address):
        fs.invalidate_cache()
        if not fs.exists(joined(root, JOB)) or fs.cat_file(joined(root, JOB)) != job:
            make_folder_at(fs, root)
            # In this order: an earlier job's profile goes first, or it would be taken for this one's. The job comes
            # last, since it says that its problems are there.
            if fs.exists(joined(root, PROFILE)):
                fs.rm_file(joined(root, PROFILE))
            fs.pipe_file(joined(root, PROBLEMS), buffer.getvalue())
            fs.pipe_file(joined(root, JOB), job)
    return hashlib.sha256(address.encode() + job).hexdigest()


def read_profile(address: str) -> pl.DataFrame | None:
    """The profile of the shard at `address`, None if it is not there."""
    fs, root = filesystem(address)
    with explained(address):
        fs.invalidate_cache()
        path = joined(root, PROFILE)
        return pl.read_parquet(io.BytesIO(fs.cat_file(path))) if fs.exists(path) else None


async def run_shard(settings: CurateSettings, address: str, job: str, number: int) -> None:
    """Run the deployment on the shard and wait for its end. If a run of the same `job` is still at work, wait for that
    one. Raises ConfigError without the deployment, InfraError if the run crashes, CoderlError if it fails."""
    parameters = {
        "problems": [joined(address, PROBLEMS)],
        "output": address,
        "settings": settings.model_dump(mode="json", exclude={"name"}),
    }
    try:
        run = await run_deployment(  # type: ignore[misc]  # a coroutine here, as this is one
            settings.shard_deployment,
            parameters=parameters,
            poll_interval=POLL_S,
            idempotency_key=await next_key(job),
            flow_run_name=f"shard-{number:04d}",
        )
    except ObjectNotFound as error:
        missing = f"there is no deployment {settings.shard_deployment}"
        raise ConfigError(f"{missing}: `coderl up` or `prefect deploy --all` makes it") from error
    state = run.state
    if state is None or not state.is_completed():
        how = f"{state.name}: {state.message}" if state else "lost: "
        message = f"shard {number}: its run {run.name} is {how}"
        # A crash is retryable: its cause was the machine. A run that failed would fail again.
        raise InfraError(message) if state is not None and state.is_crashed() else CoderlError(message)


async def next_key(job: str) -> str:
    """The idempotency key of a job's next run: that of one still at work, if there is any."""
    # One per try: for a key that it has seen Prefect returns the run that has it, also one that has ended.
    keys = [f"{job}-{number}" for number in range(MOST_TRIES)]
    of_job = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys))
    async with get_client() as client:
        runs = await client.read_flow_runs(flow_run_filter=of_job)
    for run in runs:
        if run.state is not None and not run.state.is_final() and run.idempotency_key is not None:
            return run.idempotency_key
    if len(runs) >= MOST_TRIES:
        raise CoderlError(f"{MOST_TRIES} runs of one shard have ended without a profile")
    return keys[len(runs)]
