"""What `coderl up` runs: the deployments of prefect.yaml, the work pool that they run in, which takes no job variables
that say what is executed, and a Prefect worker, which is replaced when it ends.

A flow run that nobody works on any more is Crashed, and goes on where a worker is free, by what its directory has
recorded. Its end is noticed

1. by the `coderl up` that it ran under: its process has ended, or the worker has, or it was told to stop;
2. by every other one (`LostRuns`): its worker has sent no heartbeat for three times as long as it should. That is
   measured by the observer's clock, and anew after each time that the Prefect server did not answer.

The run's directory has a lock. So a worker that was only out of reach does no harm: whoever comes second waits.
"""

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import yaml
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.actions import LogCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_WORKER_HEARTBEAT_SECONDS
from prefect.states import AwaitingRetry, Cancelled, Crashed
from prefect.workers.process import ProcessWorker
from prometheus_client.core import Metric

from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.insight.prometheus import gauge, publishing
from coderl_tasks.paths import CODE_ROOT, PROJECT_ROOT
from coderl_tasks.runtime.lean_start import LEAN_VARIABLE, WORKER_VARIABLE
from coderl_tasks.runtime.prefect_server import QUIET, is_outage
from coderl_tasks.services import guard
from coderl_tasks.services.supervisor import MAX_QUICK_DEATHS, QUICK_S, processes_with

WORK_POOL, JOBS_POOL = "local-pool", "coderl-jobs"
FIXED_VARIABLES = ("command", "env", "working_dir")
WORKER_LABEL = "prefect.worker.name"  # the label by which Prefect says whose a flow run is
MISSED_HEARTBEATS, DEFAULT_HEARTBEAT_S = 3, 30.0
MOST_CRASHES = 20  # of a flow run within a day; after more it is not begun again
LONGEST_PAUSE_S = 60.0
LATELY = timedelta(hours=1)
SETTLED_S = 15.0  # Prefect's worker reports a crash twice, within seconds, and a retry asked for in between is lost
DEPLOY_TRIES = 3
# Prefect's client tries again for minutes. A check is given up before, and one that comes late trusts no silence.
ANSWER_S, LATE_S = 60.0, 20.0
PAGE = 200  # the most that Prefect returns at once
UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]  # what a worker has taken up
Item = TypeVar("Item")


def runs_at_once() -> int:
    """How many flow runs a worker takes unless it is told: one per core, and two at least."""
    return max(2, len(os.sched_getaffinity(0)))


def deploy_all() -> None:
    """Creates the work pool if it is missing, closes it (`closed_template`), and applies prefect.yaml. Nothing else of
    a pool that exists is changed: it may have been edited. Raises CoderlError in Prefect's words."""
    asyncio.run(provide_pool(WORK_POOL, ProcessWorker.type, closed_template))
    _deploy(PROJECT_ROOT / "prefect.yaml")


def deploy_jobs(template: Path) -> None:
    """Provides the Kubernetes work pool JOBS_POOL with this base job template (a JSON file), and applies prefect.yaml
    to it: each flow run is a Job. Raises ConfigError for a file that is none, CoderlError as `deploy_all`."""
    try:
        base_job_template = json.loads(template.read_text())
        base_job_template["job_configuration"]["job_manifest"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{template} is no base job template of a Kubernetes work pool: {error!r}") from error
    asyncio.run(provide_pool(JOBS_POOL, "kubernetes", lambda template: base_job_template))
    deployments = yaml.safe_load((PROJECT_ROOT / "prefect.yaml").read_text())
    for deployment in deployments["deployments"]:
        deployment["work_pool"] = {"name": JOBS_POOL}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(yaml.safe_dump(deployments))
        _deploy(file)


def _deploy(prefect_file: Path) -> None:
    arguments = ["--no-prompt", "deploy", "--all", "--prefect-file", str(prefect_file)]
    command, environment = [sys.executable, "-m", "prefect", *arguments], {**os.environ, **QUIET, LEAN_VARIABLE: "1"}
    # In CODE_ROOT: prefect.yaml's entrypoints are relative to it.
    for tries_left in reversed(range(DEPLOY_TRIES)):
        done = subprocess.run(command, cwd=CODE_ROOT, env=environment, capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        # 409: another host makes the same at this moment. 503: the server's database is busy, for longer than Prefect's
        # own retries wait. To deploy again changes nothing that is there already.
        said = done.stdout + done.stderr
        if not tries_left or not ("409" in said or "503 Service Unavailable" in said):
            raise CoderlError(f"`prefect {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()}")


async def provide_pool(name: str, kind: str, wanted: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
    """Makes the work pool, or updates it, with the base job template `wanted` of that which it has (None: no pool)."""
    async with get_client() as client:
        try:
            template = (await client.read_work_pool(name)).base_job_template
        except ObjectNotFound:
            with suppress(ObjectAlreadyExists):  # another host has just made it, perhaps from another one
                await client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=wanted(None)))
            template = (await client.read_work_pool(name)).base_job_template
        if (new := wanted(template)) != template:
            await client.update_work_pool(name, WorkPoolUpdate(base_job_template=new))


def closed_template(template: dict[str, Any] | None) -> dict[str, Any]:
    """A process pool's base job template, of `template` (None: of Prefect's), under which no job variable of a run says
    what is executed. Those that do (`FIXED_VARIABLES`: the command, the environment that its interpreter reads, the
    folder that it imports from) are fixed at their defaults, and the server refuses all others that are not there."""
    if template is None:
        template = ProcessWorker.get_default_base_job_template()
    if "variables" not in template:
        return template
    variables, configuration = dict(template["variables"]), dict(template["job_configuration"])
    properties = dict(variables.get("properties", {}))
    for name in FIXED_VARIABLES:
        default = properties.pop(name, {}).get("default")
        if name in configuration and configuration[name] == f"{{{{ {name} }}}}":
            configuration[name] = default
            if default is None:
                del configuration[name]
    required = [name for name in variables.get("required", []) if name not in FIXED_VARIABLES]
    variables |= {"properties": properties, "additionalProperties": False, "required": required}
    return {**template, "job_configuration": configuration, "variables": variables}


def run_worker(stop: threading.Event, limit: int) -> int:
    """Runs a Prefect worker, with at most `limit` flow runs at once, until `stop` is set. Returns its exit code. One
    that ends by itself is replaced, unless MAX_QUICK_DEATHS in a row end within QUICK_S; its flow runs end with it, and
    begin again."""
    lost_runs = LostRuns()
    # This thread ends the runs of lost workers of all machines. Only a copy of this context has the server's address.
    check = partial(copy_context().run, lost_runs.check_pool_until, stop)
    threading.Thread(target=check, name="lost-runs", daemon=True).start()
    quick_deaths = 0
    # The variables with which the worker's flow runs publish their metrics together with those of `lost_runs`.
    with publishing("coderl-up", lost_runs.counted) as metrics_environment:
        while True:
            name = f"coderl-{socket.gethostname()}-{secrets.token_hex(4)}"
            started = time.monotonic()
            lost_runs.own_workers.append(name)  # it is known to live, even if its heartbeats do not arrive
            code = _run_one_worker(name, stop, limit, metrics_environment)
            # Kill its flow runs before their states are set: a live process could set its run's state afterwards.
            while pids := processes_with(WORKER_VARIABLE, name):
                for pid in pids:  # and again until none is left: one may have started another since they were listed
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
            if stop.is_set():
                lost_runs.end_runs_of(name, "was stopped")
                return code
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < QUICK_S else 0
            restart = quick_deaths < MAX_QUICK_DEATHS
            # The guard's code: 128 + n if signal n killed the worker, -n if it killed the guard itself.
            number = -code if code < 0 else code - 128
            how = signal.Signals(number).name if number in set(signal.Signals) else f"exit {code}"
            print(f"the worker ended ({how}){': starting another one' if restart else ''}", flush=True)
            lost_runs.end_runs_of(name, f"ended ({how})")
            if not restart:
                return code or 1  # nobody asked it to end, so 0 is a failure too


def _run_one_worker(name: str, stop: threading.Event, limit: int, metrics_environment: dict[str, str]) -> int:
    """Runs one worker process under this name until it ends, or `stop` is set, which ends it. Returns the exit code of
    its guard. Its flow runs publish metrics by the variables in `metrics_environment`."""
    # The type is named, as a worker without one asks the server for it, and ends if the server does not answer.
    worker_arguments = ["--pool", WORK_POOL, "--type", "process", "--name", name, "--limit", str(limit)]
    worker_command = [sys.executable, "-m", "coderl_tasks.runtime.process_worker", "worker", "start", *worker_arguments]
    defaults = {
        # Flow runs print their own progress. So the console shows only Prefect's errors; the UI has all its lines.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "ERROR",
        "PREFECT_WORKER_QUERY_SECONDS": "2",  # asks for work more often than by default: the server is on this machine
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # a server answers so while its database is away
    }
    # LEAN_VARIABLE has its processes import only what they need.
    environment = {**defaults, **os.environ, **QUIET, LEAN_VARIABLE: "1", WORKER_VARIABLE: name, **metrics_environment}
    command = [sys.executable, guard.__file__, *worker_command]
    # The guard ends the worker when this pipe closes, and so even if this process is killed.
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=CODE_ROOT)
    while worker.poll() is None and not stop.wait(0.2):
        continue
    assert worker.stdin is not None
    worker.stdin.close()
    return worker.wait()


class _FirstSeen(dict[object, tuple[object, float]]):
    """The last value seen per key, and when it was first seen there, by this process's clock."""

    def unchanged_for_s(self, key: object, value: object) -> float:
        """Notes the value, and returns for how many seconds the key has had it: 0 if it is new."""
        if key not in self or self[key][0] != value:
            self[key] = value, time.monotonic()
            return 0.0
        return time.monotonic() - self[key][1]


@dataclass
class LostRuns:
    """Ends flow runs of the pool that nobody works on any more, and begins them again."""

    own_workers: list[str] = field(default_factory=list)  # names in the order of their starts: only the last may live
    ended_workers: dict[str, str] = field(default_factory=dict)  # what became of those of this process that have ended
    _last_heartbeats: _FirstSeen = field(default_factory=_FirstSeen)  # by worker
    _run_states: _FirstSeen = field(default_factory=_FirstSeen)  # a run's state and worker, by its id
    _alive: int = 0  # workers at the last check
    _runs_by_state: Mapping[str, int] = field(default_factory=dict)  # how many flow runs, at the last check
    _begun_again: int = 0
    _given_up: set[UUID] = field(default_factory=set)  # runs that crashed too often
    _server_answered: bool = True
    _last_failure: str = ""
    _pause_s: float = 0.0
    _checked_at: float = 0.0
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def counted(self) -> Iterable[Metric]:
        yield gauge("workers", "Workers of the work pool that send heartbeats.", self._alive, {})
        yield gauge("flow_runs", "Flow runs that workers have taken up.", self._runs_by_state, {}, "state")
        yield gauge("runs_begun_again", "Flow runs that this process has begun again.", self._begun_again, {})
        yield gauge("prefect_up", "Whether the Prefect server answers.", self._server_answered, {})

    def check_pool_until(self, stop: threading.Event) -> None:
        self._pause_s = max(1.0, PREFECT_WORKER_HEARTBEAT_SECONDS.value() / 6)
        while not stop.wait(self._pause_s):
            self._send(self.check_pool)

    def end_runs_of(self, worker: str, how: str) -> None:
        """Ends the runs of an ended worker of this process; if the server does not answer now, a later check does."""
        self.ended_workers[worker] = how
        if not self._send(partial(self.check_pool, just_ended=worker)):
            print("its flow runs still say Running: `coderl up` ends them once the Prefect server answers", flush=True)

    def _send(self, request: Callable[[PrefectClient], Awaitable[None]]) -> bool:
        """Sends the request to the Prefect server, one at a time. Returns whether it succeeded. Raises nothing, as a
        later check tries again; prints a failure, but not again while it stays the same."""

        async def sent() -> None:
            async with get_client() as client:
                await request(client)

        with self._one_at_a_time:
            answered, failure = True, ""
            try:
                asyncio.run(asyncio.wait_for(sent(), ANSWER_S))
            except Exception as error:  # whatever the client raises: it must not end the thread that checks the pool
                answered, failure = not is_outage(error), str(error) or type(error).__name__
            if answered:
                if not self._server_answered:
                    print("the Prefect server answers again", flush=True)
                if failure not in ("", self._last_failure):
                    print(f"looking for lost flow runs: {failure}", flush=True)
                self._last_failure = failure
            else:
                if self._server_answered:
                    print(f"the Prefect server does not answer: {failure}", flush=True)
                # The workers' heartbeats did not reach the server either, so the silence of each is counted anew.
                self._last_heartbeats.clear()
            self._server_answered = answered
            return not failure

    async def check_pool(self, client: PrefectClient, just_ended: str | None = None) -> None:
        """Checks the work pool once. Ends the flow runs of lost workers and schedules them again. Also schedules runs
        again that have crashed, if their worker is lost or is one of this process.

        A worker is lost if it is in `ended_workers`, or has sent no heartbeat for too long. The runs of the worker
        `just_ended` are ended at once, all others only if an earlier check saw them in the same state."""
        # A check this late means that the server, or this process, was held up: then no silence proves anything.
        if time.monotonic() - self._checked_at > self._pause_s + LATE_S:
            self._last_heartbeats.clear()
        self._checked_at = time.monotonic()
        try:
            workers = await client.read_workers_for_work_pool(WORK_POOL)  # sorted: the last heartbeat first
        except PrefectHTTPStatusError as error:
            if error.response.status_code == HTTPStatus.NOT_FOUND:  # no such pool, as for shards on another one
                return
            raise
        silent_s, allowed_s = {}, {}  # by worker: seconds since its last heartbeat, and after how many it is lost
        for worker in workers:
            silent_s[worker.name] = self._last_heartbeats.unchanged_for_s(worker.name, worker.last_heartbeat_time)
            allowed_s[worker.name] = MISSED_HEARTBEATS * (worker.heartbeat_interval_seconds or DEFAULT_HEARTBEAT_S)
        unfinished = await all_pages(partial(client.read_flow_runs, **of_pool(UNFINISHED), limit=PAGE))
        crashed = await crashed_runs(client)
        lost = self._lost_workers(silent_s, allowed_s, {worker_of(run) for run in (*unfinished, *crashed)})
        self._runs_by_state = Counter((run.state_name or "").lower() for run in unfinished)
        for run in (*unfinished, *crashed):
            await self._end_or_restart(client, run, lost, just_ended)

    def _lost_workers(
        self, silent_s: dict[str, float], allowed_s: dict[str, float], at_work: Set[str]
    ) -> dict[str, str]:
        """Returns what became of each lost worker, by name: of all that ended in this process, and of those `at_work`
        (named by flow runs) that have sent no heartbeat for longer than `allowed_s` and this process's wait for others.
        `silent_s` has the seconds since the last heartbeat of each worker that the pool lists. Sets `_alive`."""
        is_alive = {name: silent_s[name] <= allowed_s[name] or name in self.own_workers for name in silent_s}
        alive = sorted(name for name in silent_s if is_alive[name] and name not in self.ended_workers)
        self._alive = len(alive)
        # Each process with a worker checks the pool, but one should act: that of the first live worker does so at once,
        # that of the second SETTLED_S later, if it is still needed. A process without a worker comes last.
        # Of its own workers only the last one can live.
        has_live_worker = bool(self.own_workers) and self.own_workers[-1] in alive
        processes_before = alive.index(self.own_workers[-1]) if has_live_worker else len(alive)
        lost = dict(self.ended_workers)
        for name in at_work - {*alive, *lost}:
            # One that the pool does not list counts as silent from the first check that did not find it: until it is
            # listed, the time of its last heartbeat stays None.
            since_s = silent_s[name] if name in silent_s else self._last_heartbeats.unchanged_for_s(name, None)
            allowed = allowed_s.get(name, MISSED_HEARTBEATS * DEFAULT_HEARTBEAT_S)
            if since_s > allowed + SETTLED_S * processes_before:
                lost[name] = f"has sent no heartbeat for {since_s:.0f} s"
        return lost

    async def _end_or_restart(
        self, client: PrefectClient, run: FlowRun, lost: dict[str, str], ended: str | None
    ) -> None:
        """Ends an unfinished run whose worker is in `lost`, and schedules it again unless a person was cancelling it.
        Schedules a crashed run again if its worker is lost or one of this process: its process was killed for memory,
        say, or noticed its worker's end before any check did. Runs of the worker `ended` need no earlier check."""
        name, state = worker_of(run), run.state
        if state is None:
            return
        has_crashed = state.is_crashed()
        is_given_up = has_crashed and run.id in self._given_up
        if is_given_up or not (name in lost or (has_crashed and name in self.own_workers)):
            return
        # Unfinished: noted first, as a run that another worker has just taken up keeps its earlier worker's label for a
        # moment. Crashed: Prefect's worker may report it twice, and the second report would undo the new schedule.
        noted_s = self._run_states.unchanged_for_s(run.id, (state.id, name))
        is_settled = noted_s > (SETTLED_S if has_crashed else 0) or name == ended
        # Ask again now, as the list may be old: a person may have cancelled the run, or it has ended.
        if not is_settled or not await is_still(client, run):
            return
        why = f"its process ended ({state.message})" if has_crashed else f"its worker {name} {lost[name]}"
        if not has_crashed:
            await end_run(client, run, cancelled=state.is_cancelling(), why=why)
            if state.is_cancelling() or run.parent_task_run_id is not None:  # a subflow's parent starts another one
                return
        await self._begin_again(client, run, why)

    async def _begin_again(self, client: PrefectClient, run: FlowRun, why: str) -> None:
        """Reschedules a crashed run, so that the next free worker takes it up, after a pause that grows with the number
        of crashes; gives it up after MOST_CRASHES within a day. Says so, and `why` it crashed, here and in its log."""
        since = datetime.now(UTC) - timedelta(days=1)
        states: list[State[Any]] = await client.read_flow_run_states(run.id)
        crashes = sum(state.is_crashed() and state.timestamp > since for state in states)
        if crashes > MOST_CRASHES:
            self._given_up.add(run.id)
            retry = f"`prefect flow-run retry {run.id}`"
            what_next = f"it crashed {crashes} times within a day and is not restarted ({retry})"
        else:
            pause_s = min(LONGEST_PAUSE_S, 5.0 * (crashes - 1))
            # "At once" is an hour ago: where the worker's clock is behind this one, a run of now would not be due yet.
            at = datetime.now(UTC) + timedelta(seconds=pause_s if pause_s > 0 else -3600)
            await client.set_flow_run_state(run.id, AwaitingRetry(scheduled_time=at, message=why), force=True)
            self._begun_again += 1
            what_next = f"the next free worker resumes it, unless `prefect flow-run cancel {run.id}` ends it"
        said, now = f"{why}; {what_next}", datetime.now(UTC)
        print(f"flow run {run.name}: {said}", flush=True)
        line = LogCreate(name="coderl", level=logging.WARNING, message=said, timestamp=now, flow_run_id=run.id)
        await client.create_logs([line])


def worker_of(run: FlowRun) -> str:
    """The name of the worker that took up a run; if it ended before it labelled the run, a name that no worker has."""
    return str(run.labels.get(WORKER_LABEL, f"of flow run {run.id}"))


async def is_still(client: PrefectClient, run: FlowRun) -> bool:
    """Whether a run is there, and in the state that it had when it was read."""
    try:
        state = (await client.read_flow_run(run.id)).state
    except ObjectNotFound:
        return False
    return state is not None and run.state is not None and state.id == run.state.id


async def crashed_runs(client: PrefectClient) -> list[FlowRun]:
    """The pool's flow runs that crashed lately, without subflows. Old crashes are left alone by a first check."""
    runs = await client.read_flow_runs(**of_pool([StateType.CRASHED]), sort=FlowRunSort.END_TIME_DESC, limit=PAGE)
    own, since = [run for run in runs if run.parent_task_run_id is None], datetime.now(UTC) - LATELY
    return [run for run in own if run.state is not None and run.state.timestamp > since]


def in_states(types: list[StateType]) -> filters.FlowRunFilterState:
    return filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=types))


def of_pool(types: list[StateType]) -> dict[str, Any]:
    """What selects the pool's runs with a state of these types."""
    pool = filters.WorkPoolFilter(name=filters.WorkPoolFilterName(any_=[WORK_POOL]))
    return {"flow_run_filter": filters.FlowRunFilter(state=in_states(types)), "work_pool_filter": pool}


async def all_pages(read: Callable[..., Awaitable[list[Item]]]) -> list[Item]:
    """All that `read` returns from an `offset` on, a page at a time."""
    items = page = await read(offset=0)
    while len(page) == PAGE:
        page = await read(offset=len(items))
        items = [*items, *page]
    return items


async def end_run(client: PrefectClient, run: FlowRun, *, cancelled: bool, why: str) -> None:
    """Ends a flow run and its parts: Cancelled, or Crashed."""
    state: State[Any] = Cancelled() if cancelled else Crashed(message=why)
    await client.set_flow_run_state(run.id, state, force=True)  # force: Prefect may not refuse or alter it
    # A deployment's run that this one has started has a worker of its own.
    parts = filters.FlowRunFilter(
        parent_flow_run_id=filters.FlowRunFilterParentFlowRunId(any_=[run.id]),
        deployment_id=filters.FlowRunFilterDeploymentId(is_null_=True),
        state=in_states(UNFINISHED),
    )
    for part in await all_pages(partial(client.read_flow_runs, flow_run_filter=parts, limit=PAGE)):
        await end_run(client, part, cancelled=cancelled, why=why)
