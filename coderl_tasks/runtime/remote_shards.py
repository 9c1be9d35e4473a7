"""Shards of a curation profiled by runs of a deployment: on whatever machines its work pool has workers.

    <address>/<pool>/shards/0003/problems-<hash>.parquet the shard's problems
                                 job-<job>.json          what is asked of each of them
                                 ...                     the record of the run that does it (see `curation.profile`)
                                 profile-<job>.parquet   its result, written last

A shard whose profile is there is done. It has one for each pass over the problems (screening, labels), by the hash of
what the pass asks; the record is that of all passes. A run that is still at work when a curation is started again is
waited for, and not started a second time. One that was cancelled, crashed or lost is followed by another one, and one
that no worker takes up is withdrawn: so a curation ends even where it has the only slot itself.

The record lives at the address, so that another machine can go on where one was killed (`recorded_at`). Work is done in
a local folder, as always: atomic files, one writer. What was not yet sent when a machine died is done again.
"""

import asyncio
import hashlib
import io
import json
import logging
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any, cast
from uuid import UUID

import httpx
import polars as pl
from prefect import get_client, task
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Completed, Failed, State
from prefect.utilities.annotations import quote

from coderl_tasks.addresses import explained, filesystem, joined, local_path, make_folder_at
from coderl_tasks.errors import BudgetReachedError, CoderlError, ConfigError, InfraError
from coderl_tasks.journal.atomic import make_folder
from coderl_tasks.journal.directory_lock import DirectoryLock
from coderl_tasks.journal.ledger import Budget, Tokens, is_capped, profile_tokens
from coderl_tasks.paths import coderl_home
from coderl_tasks.problems.problem import Problem, problems_frame
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.retries import PHASE
from coderl_tasks.rollouts.engine import first_error
from coderl_tasks.runtime.display import Display
from coderl_tasks.runtime.worker import PAGE, LostRuns, all_pages, in_states
from coderl_tasks.settings import CurateSettings

logger = logging.getLogger(__name__)
# The caps, by the name of the state in which a shard's run ends that has spent its part of one (`at_cap`).
CAPS = {f"{cap} is reached": cap for cap in ("max_tokens_total", "max_usd")}
MOST_TRIES = 100
POLL_S = 2.0
TAKE_UP_S = 60.0
Shard = tuple[Iterable[Problem], str]  # a shard's problems, and as JSON what is asked of them


@dataclass(slots=True)
class RemoteShards:
    """What it takes to have a curation's shards profiled by runs of a deployment, within `budget`. `profile_here`
    (number, address, name of the result's file, caps) profiles a shard in this process if no worker takes it up, one
    shard at a time (`here_lock`).

    What is left of a spending cap is divided into `budget_divisor` equal shares, one per flow run at work; what a run
    does not spend goes back. Once a share was too small the divisor is 1: one run at a time gets all that is left."""

    settings: CurateSettings
    display: Display
    budget: Budget
    profile_here: Callable[[int, str, str, Mapping[str, float]], Awaitable[None]]
    here_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    budget_divisor: int = 1


async def profile_remotely(remote: RemoteShards, shards: Mapping[int, Shard], folder: Path) -> pl.DataFrame:
    """Profiles all `shards` (by number) of the curation in `folder` by flow runs of a deployment, `shards_in_flight` at
    a time, at `settings.record_address(folder)`, which all machines can reach. Returns one frame (SHARD_SCHEMA) in the
    order of `shards`. Raises BudgetReachedError if a shard needs more than is left of a spending cap."""
    settings, address = remote.settings, remote.settings.record_address(folder)
    slots = asyncio.Semaphore(settings.shards_in_flight)
    remote.budget_divisor = min(settings.shards_in_flight, len(shards))  # each run may spend that part of what is left
    done = 0
    # End and restart the runs of lost workers: `coderl up`, which does so as well, may be gone with them.
    stop = threading.Event()
    checking = asyncio.create_task(asyncio.to_thread(LostRuns().check_pool_until, stop))
    try:
        if is_capped(settings):
            # Runs of an earlier start may still spend what that gave them: count only after they have ended.
            await wait_for_runs(f"{address}/", remote.display)
            remote.budget.spent = await tokens_at(address)
        async with remote.display.bar(f"{len(shards)} shards as runs of {settings.shard_deployment}") as on_progress:

            async def profiled(number: int) -> pl.DataFrame:
                nonlocal done
                shard_address = joined(address, "shards", f"{number:04d}")
                async with slots:
                    profile = await _profile_within_budget(remote, shards[number], shard_address, number)
                done += 1
                on_progress(done, len(shards))
                return profile

            with first_error():  # raises it itself, not its group's; the group has cancelled the others
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(profiled(number)) for number in shards]
    finally:
        stop.set()
        await checking
    return pl.concat([pl.DataFrame(schema=SHARD_SCHEMA), *(each.result() for each in tasks)])


async def _profile_within_budget(remote: RemoteShards, shard: Shard, address: str, number: int) -> pl.DataFrame:
    """Returns the profile of shard `number`, made at `address` by a flow run that may spend its share of what is left
    of a cap. If that is too little, the next run gets all that is left; then BudgetReachedError."""
    # `quote` keeps Prefect from searching every problem of the shard for results of other tasks.
    quoted_remote, quoted_shard = cast(RemoteShards, quote(remote)), cast(Shard, quote(shard))
    while True:
        divisor = remote.budget_divisor  # as another shard may set it while this one is profiled
        async with share_of_budget(remote, address, divisor) as caps:
            profile_or_cap = await dispatch(quoted_remote, quoted_shard, address, number, caps)
        if isinstance(profile_or_cap, pl.DataFrame):
            return profile_or_cap
        reached_cap = profile_or_cap  # the name of the setting
        if divisor == 1:  # the run had all that is left
            said = f"{remote.budget.spent.in_words()} are spent, and shard {number} needs more"
            raise BudgetReachedError(reached_cap, getattr(remote.settings, reached_cap), said, flow="curate")
        remote.budget_divisor = 1


@asynccontextmanager
async def share_of_budget(remote: RemoteShards, address: str, divisor: int) -> AsyncIterator[dict[str, float]]:
    """Sets aside one of `divisor` equal shares of what is left of the budget. Yields the caps that it makes for the
    shard at `address`; none if the curation has none. What the block spent is charged when it ends."""
    if not is_capped(remote.settings):
        yield {}
        return
    async with remote.budget.share(divisor) as caps_after:
        before = await tokens_at(address)
        yield caps_after(before)
        more = await tokens_at(address) - before
        remote.budget.spent += more  # after the await: another shard may be charged meanwhile


@task(name="count-tokens", **PHASE)
async def tokens_at(address: str) -> Tokens:  # what is spent on the shard, or on all shards of the pool, recorded there
    return await asyncio.to_thread(profile_tokens, address)


async def wait_for_runs(address_prefix: str, display: Display) -> None:
    """Waits until all flow runs on shards below this address have ended. Cancels those that have not begun."""
    selected: dict[str, Any] = {
        "flow_filter": FlowFilter(name=FlowFilterName(any_=["profile-shard"])),
        "flow_run_filter": FlowRunFilter(state=in_states([kind for kind in StateType if kind not in TERMINAL_STATES])),
    }
    is_said = False
    while True:
        try:
            async with get_client() as client:
                all_runs = await all_pages(partial(client.read_flow_runs, limit=PAGE, **selected))
                runs = [run for run in all_runs if str(run.parameters.get("output", "")).startswith(address_prefix)]
                for run in runs:
                    if run.state is not None and run.state.is_scheduled():
                        await client.set_flow_run_state(run.id, Cancelled(message="the curation was started again"))
        # The server does not answer (the thread of `LostRuns` prints that, once), or a run was deleted meanwhile.
        except (httpx.HTTPError, ObjectNotFound):
            await asyncio.sleep(POLL_S)
            continue
        if not runs:
            return
        if not is_said:
            display.say(f"waiting for {len(runs)} shards that an earlier start left at work")
        is_said = True
        await asyncio.sleep(POLL_S)


@task(name="dispatch", task_run_name="dispatch-shard-{number}", **PHASE)
async def dispatch(
    remote: RemoteShards, shard: Shard, address: str, number: int, caps: Mapping[str, float]
) -> pl.DataFrame | str:
    """Returns the profile of one shard, made by a flow run of the deployment within `caps`, or the name of the cap that
    the run has reached. Runs nothing if the profile is at `address` already. A run that crashed or was cancelled is
    followed by another one; after a failed one, or one without a result, CoderlError is raised."""
    problems, asked = shard
    job = await asyncio.to_thread(put_job, remote.settings, problems, asked, address)
    while (profile := await asyncio.to_thread(read_profile, address, job)) is None:
        state = await run_shard(remote, address, job, number, caps)
        if state.name in CAPS:  # a run that reaches a cap ends in a state with that cap's name (`at_cap`)
            return CAPS[state.name]
        if state.is_failed():  # it would fail again
            raise CoderlError(f"shard {number}: its run is {state.name}: {state.message}")
        if state.is_completed():
            profile = await asyncio.to_thread(read_profile, address, job)
            if profile is None:
                path = joined(address, job.profile)
                raise CoderlError(f"shard {number}: its run left no {path}: can the worker write there?")
            break
        remote.display.say(  # crashed or cancelled
            f"shard {number}: its run is {state.name} ({state.message or 'no reason given'}): another run profiles it"
        )
        await asyncio.sleep(POLL_S)
    return profile


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done with a shard."""

    key: str  # the hash of all that says so
    problems: str  # the name of the file with its problems

    @property
    def profile(self) -> str:
        return profile_file(self.key)


def job_file(key: str) -> str:  # which says what is asked of each problem
    return f"job-{key[:12]}.json"


def profile_file(key: str) -> str:  # the result
    return f"profile-{key[:12]}.parquet"


def put_job(settings: CurateSettings, problems: Iterable[Problem], asked: str, address: str) -> Job:
    """Puts the shard's problems, and what is `asked` of them, where the worker finds them, if they are not there."""
    buffer = io.BytesIO()
    problems_frame(list(problems)).write_parquet(buffer, compression="zstd")
    problems_sha256 = hashlib.sha256(buffer.getvalue()).hexdigest()
    content = {"problems": problems_sha256, "settings": settings.content(), "asked": json.loads(asked)}
    text = json.dumps(content).encode()
    job = Job(hashlib.sha256(address.encode() + text).hexdigest(), f"problems-{problems_sha256[:12]}.parquet")
    fs, root = filesystem(address)
    with explained(address):
        fs.invalidate_cache()
        if not fs.exists(file := joined(root, job_file(job.key))):
            make_folder_at(fs, root)
            fs.pipe_file(joined(root, job.problems), buffer.getvalue())
            fs.pipe_file(file, text)  # last, since it says that its problems are there
    return job


def read_profile(address: str, job: Job) -> pl.DataFrame | None:
    """A job's profile of the shard at `address`, None if it is not there."""
    fs, root = filesystem(address)
    with explained(address):
        fs.invalidate_cache()
        path = joined(root, job.profile)
        return pl.read_parquet(io.BytesIO(fs.cat_file(path))) if fs.exists(path) else None


def read_asked(address: str, key: str) -> str:
    """What the job of this hash asks of the problems of the shard at `address`, as JSON."""
    fs, root = filesystem(address)
    with explained(address):
        return json.dumps(json.loads(fs.cat_file(joined(root, job_file(key))))["asked"])


async def run_shard(remote: RemoteShards, address: str, job: Job, number: int, caps: Mapping[str, float]) -> State[Any]:
    """Has a flow run of the deployment do `job`, whose files are at `address`, within `caps`. Returns the state that it
    ends in. If no worker takes it up within TAKE_UP_S it is withdrawn, and this process profiles the shard. Raises
    ConfigError if there is no such deployment or the Prefect server refuses the run, InfraError if it does not answer.
    """
    run = await _begin_run(remote.settings.with_changes(**caps), address, job, number)
    unclaimed_since = time.monotonic()
    while (state := await state_of(run)) is None or not state.is_final():  # None: no answer
        if state is not None and not state.is_scheduled():  # a worker has it; it may be scheduled again later
            unclaimed_since = time.monotonic()
        elif time.monotonic() - unclaimed_since > TAKE_UP_S and not remote.here_lock.locked():
            async with remote.here_lock:  # this process profiles one shard at a time; the others go on waiting
                if await is_withdrawn(run):  # not if a worker has taken it up just now
                    waited = f"no worker has taken it up for {TAKE_UP_S:.0f} s"
                    remote.display.say(f"shard {number}: {waited}: it is profiled here")
                    try:
                        await remote.profile_here(number, address, job.profile, caps)
                    except BudgetReachedError as error:
                        return at_cap(error)
                    return Completed()
            unclaimed_since = time.monotonic()
        await asyncio.sleep(POLL_S)
    return state


async def _begin_run(settings: CurateSettings, address: str, job: Job, number: int) -> UUID:
    content = settings.model_dump(mode="json", exclude={"name"})  # name: the pool's, not the shard's
    parameters = {
        "problems": [joined(address, job.problems)],
        "output": address,
        # A deployment's schema has no null for a preset, as the UI's form offers a choice of words.
        "settings": content | {"preset": settings.preset or "none"},
        "job": job.key,
    }
    try:
        run = await run_deployment(  # type: ignore[misc]  # a coroutine here, as this is one
            settings.shard_deployment,
            parameters=parameters,
            timeout=0,  # return at once: the caller waits
            idempotency_key=await key_of_run(job.key),  # with the key of a run still at work Prefect returns that one
            flow_run_name=f"shard-{number:04d}",
        )
    except ObjectNotFound as error:
        missing = f"there is no deployment {settings.shard_deployment}"
        raise ConfigError(f"{missing}: `coderl up` or `prefect deploy --all` makes it") from error
    except httpx.HTTPError as error:
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
        if isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error and status not in (408, 429):
            # Such as parameters that the deployment's schema, perhaps of another version, does not take.
            refusal = f"the Prefect server refuses a run of {settings.shard_deployment} (HTTP {status})"
            raise ConfigError(f"{refusal}: {error.response.text[:500]}") from error
        # The task tries this again.
        raise InfraError(f"no answer from the Prefect server: {str(error) or type(error).__name__}") from error
    return cast(UUID, run.id)


def at_cap(error: BudgetReachedError) -> State[Any]:
    """The state in which a shard's run ends that has spent its part of a cap: one of CAPS."""
    return Failed(name=f"{error.setting} is reached", message=str(error))


async def state_of(run: UUID) -> State[Any] | None:
    """The state of a flow run, Cancelled if it is deleted; None while the Prefect server does not answer."""
    try:
        async with get_client() as client:
            return (await client.read_flow_run(run)).state
    except ObjectNotFound:
        return Cancelled(message="deleted")
    except httpx.HTTPError:  # which the thread of `LostRuns` prints, once
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


async def key_of_run(job: str) -> str:
    """The idempotency key to start a job's run with: that of a run still at work, else the first that is not used."""
    # Each try needs its own key: for a key that it has seen Prefect returns the run with it, also one that has ended.
    keys = [f"{job}-{number}" for number in range(MOST_TRIES)]
    of_job = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys))
    async with get_client() as client:
        runs = await client.read_flow_runs(flow_run_filter=of_job)
    for run in runs:
        if run.state is not None and not run.state.is_final() and run.idempotency_key is not None:
            return run.idempotency_key
    used = [keys.index(run.idempotency_key) for run in runs if run.idempotency_key is not None]
    number = max(used, default=-1) + 1  # not how many: some may be deleted
    if number >= MOST_TRIES:
        raise CoderlError(f"{MOST_TRIES} runs of one shard have ended without a profile")
    return keys[number]


class Mirror:
    """The files of the folder `local`, kept equal to those at `address` by `fetch` and `send`."""

    def __init__(self, address: str, local: Path) -> None:
        self._address, self._local = address, local
        self._fs, self._root = filesystem(address)
        self._sent: dict[str, tuple[int, int, int]] = {}  # the stamp of each file, by name
        self._sending = threading.Lock()

    def fetch(self) -> None:
        """Makes the local folder hold what is at the address, and nothing else."""
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
        """Sends what is new or has changed since the last call, whole files only, then deletes what is gone here."""
        # One at a time: cancelling `send_news` does not end the thread in which it sends, and the last send follows.
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
        """Sends one file; False if it is gone."""
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

    def _stamps(self) -> dict[str, tuple[int, int, int]]:
        """When each file was written (ns), its inode and size, by name: what tells whether it has been written again.
        The file renamed into place may have the old one's size, and its time within a clock tick."""
        stamps = {}
        for path in sorted(self._local.rglob("*")):
            if path.name.startswith(".") or path.name == "run.lock":
                continue
            with suppress(FileNotFoundError):  # it has vanished meanwhile
                stat = path.stat()
                if S_ISREG(stat.st_mode):
                    name = path.relative_to(self._local).as_posix()
                    stamps[name] = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        return stamps


@asynccontextmanager
async def recorded_at(address: str) -> AsyncIterator[tuple[Path, Callable[[], None]]]:
    """Yields a local folder to work in, and a function to call when something was written there: the folder at
    `address` if that is local; else a copy of it, whose changes are sent to `address` in the background and at the end,
    even after an error. One process at a time may work in it (else DirectoryBusyError); across machines the caller must
    ensure that."""
    original = local_path(address)
    local = original or coderl_home() / "mirrors" / hashlib.sha256(address.encode()).hexdigest()[:16]
    news = asyncio.Event()
    # A copy's lock lies beside it: `fetch` deletes the copy.
    with DirectoryLock(make_folder(local) if original else make_folder(local.parent / f"{local.name}.lock")):
        if original is not None:
            yield original, news.set  # which does nothing: it is all at its address already
            return
        mirror = Mirror(address, local)
        await asyncio.to_thread(mirror.fetch)

        async def send_news() -> None:
            while await news.wait():
                news.clear()
                try:
                    await asyncio.to_thread(mirror.send)
                except InfraError as error:  # sent with the next news, or at the end, where a failure counts
                    logger.warning("not yet sent: %s", error)

        sending = asyncio.create_task(send_news())
        try:
            yield local, news.set
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await asyncio.to_thread(mirror.send)
        shutil.rmtree(local)  # only if the block and the last send succeeded: else it holds what was not sent
