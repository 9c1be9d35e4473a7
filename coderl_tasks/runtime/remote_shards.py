"""Shards of a curation profiled by runs of a deployment: on whatever machines its work pool has workers.

    <address>/<pool>/shards/0003/problems.parquet   the shard's problems
                                 job.json           what is to be done with them
                                 ...                the record of the run that does it (see `curation.profile`)
                                 profile.parquet    its result, written last

A shard whose profile is there is done. A run that is still at work when a curation is started again is waited for, and
not started a second time. One that was cancelled, crashed or lost is followed by another one, and one that no worker
takes up is withdrawn: so a curation ends even where it has the only slot itself.

The record lives at the address, so that another machine can go on where one was killed (`recorded_at`):

1. Work is done in a local folder, as always: atomic files, one writer. What an address other than a local path holds is
   fetched before, and what changes is sent there: when the caller says so, and at the end, even after an error.
2. Only whole files are sent (atomic writes leave no others), new ones before old ones are deleted. What was not yet
   sent when a machine died is done again.
"""

import asyncio
import hashlib
import io
import json
import logging
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any
from uuid import UUID

import httpx
import polars as pl
from prefect import get_client, task
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, State
from prefect.utilities.annotations import quote

from coderl_tasks.addresses import explained, filesystem, joined, local_path, make_folder_at
from coderl_tasks.errors import CoderlError, ConfigError, InfraError
from coderl_tasks.journal.atomic import make_folder
from coderl_tasks.journal.directory_lock import DirectoryLock
from coderl_tasks.paths import coderl_home
from coderl_tasks.problems.problem import Problem, problems_frame
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.retries import PHASE
from coderl_tasks.runtime.display import Display
from coderl_tasks.runtime.worker import LostRuns
from coderl_tasks.settings import CurateSettings

logger = logging.getLogger(__name__)
PROBLEMS, JOB, PROFILE = "problems.parquet", "job.json", "profile.parquet"
MOST_TRIES = 100
POLL_S = 2.0
TAKE_UP_S = 60.0
Stamp = tuple[int, int, int]
"""When a file was written (ns), its inode and size: what tells whether it has been written again. The file renamed into
place may have the old one's size, and its time within a clock tick."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What it takes to have a curation's shards profiled by runs of a deployment. `here` profiles a shard, by number,
    at an address, in this process: one at a time, and only if no worker takes it up."""

    settings: CurateSettings
    display: Display
    here: Callable[[int, str], Awaitable[None]]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


async def profile_elsewhere(elsewhere: Elsewhere, shards: Sequence[Iterable[Problem]], folder: Path) -> pl.DataFrame:
    """Profile all shards by runs of a deployment, `shards_in_flight` at a time. Returns one frame (SHARD_SCHEMA) in the
    order of the shards. They are exchanged below `shard_address`, in a folder named as the pool's `folder`, or
    without it in that itself."""
    settings = elsewhere.settings
    local = str(folder.resolve())  # absolute: a worker has another working directory
    address = local if settings.shard_address is None else joined(settings.shard_address, folder.name)
    slots = asyncio.Semaphore(settings.shards_in_flight)
    done = 0
    # A worker may be lost where no `coderl up` is left to notice.
    stop = threading.Event()
    looking = asyncio.create_task(asyncio.to_thread(LostRuns().look_on, stop))
    try:
        async with elsewhere.display.bar(f"{len(shards)} shards as runs of {settings.shard_deployment}") as on_progress:

            async def profiled(number: int) -> pl.DataFrame:
                nonlocal done
                async with slots:
                    shard_address = joined(address, "shards", f"{number:04d}")
                    # Prefect would look through every problem of the shard for results of other tasks. The task gets
                    # what is quoted.
                    quoted: Any = quote(elsewhere)
                    frame = await dispatch(quoted, quote(shards[number]), shard_address, number)
                done += 1
                on_progress(done, len(shards))
                return frame

            frames = await asyncio.gather(*(profiled(number) for number in range(len(shards))))
    finally:
        stop.set()
        await looking
    return pl.concat([pl.DataFrame(schema=SHARD_SCHEMA), *frames])


@task(name="dispatch", task_run_name="dispatch-shard-{number}", **PHASE)
async def dispatch(elsewhere: Elsewhere, problems: Iterable[Problem], address: str, number: int) -> pl.DataFrame:
    """The profile of one shard, from the deployment's run that makes it; nothing is run if it is there."""
    job = await asyncio.to_thread(put_job, elsewhere.settings, problems, address)
    while (profile := await asyncio.to_thread(read_profile, address)) is None:
        if await run_shard(elsewhere, address, job, number):
            profile = await asyncio.to_thread(read_profile, address)
            if profile is None:
                path = joined(address, PROFILE)
                raise CoderlError(f"shard {number}: its run left no {path}: can the worker write there?")
            break
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


async def run_shard(elsewhere: Elsewhere, address: str, job: str, number: int) -> bool:
    """Run the deployment on the shard and wait for its end. If a run of the same `job` is still at work, wait for that
    one; one that no worker takes up within TAKE_UP_S is withdrawn, and the shard profiled here, where that is possible.
    Returns whether it is done; not if the run was cancelled, crashed or lost. Raises ConfigError without the
    deployment, CoderlError if the run fails."""
    settings, say = elsewhere.settings, elsewhere.display.say
    parameters = {
        "problems": [joined(address, PROBLEMS)],
        "output": address,
        "settings": settings.model_dump(mode="json", exclude={"name"}),  # name: the pool's, not the shard's
    }
    try:
        run = await run_deployment(  # type: ignore[misc]  # a coroutine here, as this is one
            settings.shard_deployment,
            parameters=parameters,
            timeout=0,
            idempotency_key=await next_key(job),  # with the key of a run still at work Prefect returns that one
            flow_run_name=f"shard-{number:04d}",
        )
    except ObjectNotFound as error:
        missing = f"there is no deployment {settings.shard_deployment}"
        raise ConfigError(f"{missing}: `coderl up` or `prefect deploy --all` makes it") from error
    except httpx.HTTPError as error:  # which the task tries again
        raise InfraError(f"no answer from the Prefect server: {error or type(error).__name__}") from error
    waits_since = time.monotonic()
    while (state := await state_of(run.id)) is None or not state.is_final():
        if state is not None and not state.is_scheduled():
            waits_since = time.monotonic()
        elif time.monotonic() - waits_since > TAKE_UP_S and not elsewhere.turn.locked():
            async with elsewhere.turn:
                if await is_withdrawn(run.id):
                    say(f"shard {number}: no worker has taken it up for {TAKE_UP_S:.0f} s: it is profiled here")
                    await elsewhere.here(number, address)
                    return True
                waits_since = time.monotonic()
        await asyncio.sleep(POLL_S)
    if state.is_failed():  # it would fail again
        raise CoderlError(f"shard {number}: its run {run.name} is {state.name}: {state.message}")
    if not state.is_completed():
        say(f"shard {number}: its run is {state.name} ({state.message or 'no reason given'}): another one goes on")
        await asyncio.sleep(POLL_S)
    return state.is_completed()


async def state_of(run: UUID) -> State[Any] | None:
    """The state of a flow run, Cancelled if it is deleted; None while the Prefect server does not answer."""
    try:
        async with get_client() as client:
            return (await client.read_flow_run(run)).state
    except ObjectNotFound:
        return Cancelled(message="deleted")
    except httpx.HTTPError:  # which `LostRuns` says, once
        return None


async def is_withdrawn(run: UUID) -> bool:
    """Cancels a flow run that no worker has taken up. Returns whether it is cancelled."""
    state = await state_of(run)
    if state is not None and state.is_scheduled():
        with suppress(httpx.HTTPError):
            async with get_client() as client:
                await client.set_flow_run_state(run, Cancelled(message="the curation profiles this shard itself"))
        state = await state_of(run)
    return state is not None and state.is_cancelled()


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


class Mirror:
    """The files of the folder `local`, kept equal to those at `address` by `fetch` and `send`."""

    def __init__(self, address: str, local: Path) -> None:
        self._address, self._local = address, local
        self._fs, self._root = filesystem(address)
        self._sent: dict[str, Stamp] = {}
        self._sending = threading.Lock()

    def fetch(self) -> None:
        """Make the local folder hold what is at the address, and nothing else."""
        # The address alone is the record. A killed process may have left files here that it never sent.
        shutil.rmtree(self._local, ignore_errors=True)
        make_folder(self._local)
        with explained(self._address):
            # Another machine may have written there since this process last listed it.
            self._fs.invalidate_cache()
            for remote in self._fs.find(self._root) if self._fs.exists(self._root) else []:
                path = self._local / remote.removeprefix(self._root).lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(remote, str(path))
        self._sent = self._stamps()

    def send(self) -> None:
        """Send what is new or has changed since the last call, then delete there what is gone here."""
        # One at a time: cancelling `_send_news` does not end the thread in which it sends, and the last send follows.
        with self._sending, explained(self._address):
            # Before the transfer: a file that is rewritten meanwhile then has another stamp, and is sent again.
            now = self._stamps()
            # In the order in which they were written: what says whose groups these are is there before them, and a kill
            # in between leaves no groups that belong to nothing.
            for name, stamp in sorted(now.items(), key=lambda item: item[1][0]):
                if self._sent.get(name) != stamp and self._put(name):
                    self._sent[name] = stamp
            # Last: whoever takes over in between finds a file, what replaced it, or both, but never neither.
            for name in [name for name in self._sent if name not in now]:
                self._fs.rm_file(joined(self._root, name))
                del self._sent[name]

    def _put(self, name: str) -> bool:
        """Send one file; False if it is gone."""
        source, target = self._local / name, joined(self._root, name)
        make_folder_at(self._fs, target.rpartition("/")[0])
        try:
            self._fs.put_file(str(source), target)
        except FileNotFoundError:
            # Deleted since it was listed, as groups are once one file holds them all.
            if source.exists():
                raise
            return False
        return True

    def _stamps(self) -> dict[str, Stamp]:
        """Of each file, by name; one that vanishes meanwhile is left out."""
        stamps = {}
        for path in sorted(self._local.rglob("*")):
            if path.name.startswith(".") or path.name == "run.lock":
                continue
            with suppress(FileNotFoundError):
                stat = path.stat()
                if S_ISREG(stat.st_mode):
                    name = path.relative_to(self._local).as_posix()
                    stamps[name] = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        return stamps


@asynccontextmanager
async def recorded_at(address: str) -> AsyncIterator[tuple[Path, Callable[[], None]]]:
    """Yields a folder to work in, the one at `address` if that is local, else a copy, and a function that asks for what
    is new in a copy to be sent there. It is also sent at the end, even after an error. One process at a time may work
    in the folder (else DirectoryBusyError); across machines the caller must ensure that."""
    original = local_path(address)
    local = original or coderl_home() / "mirrors" / hashlib.sha256(address.encode()).hexdigest()[:16]
    news = asyncio.Event()
    # A copy's lock lies beside it: `fetch` deletes the copy.
    lock = DirectoryLock(make_folder(local) if original else make_folder(local.parent / f"{local.name}.lock"))
    try:
        if original is not None:
            yield original, news.set  # which does nothing: it is all at its address already
            return
        mirror = Mirror(address, local)
        await asyncio.to_thread(mirror.fetch)
        sending = asyncio.create_task(_send_news(mirror, news))
        try:
            yield local, news.set
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await asyncio.to_thread(mirror.send)
        shutil.rmtree(local)  # only if the block and the last send succeeded: else it holds what was not sent
    finally:
        lock.release()


async def _send_news(mirror: Mirror, news: asyncio.Event) -> None:
    while True:
        await news.wait()
        news.clear()
        try:
            await asyncio.to_thread(mirror.send)
        except InfraError as error:  # sent with the next news, or at the end, where a failure counts
            logger.warning("not yet sent: %s", error)
