"""The deployments of prefect.yaml, the work pool that they run in, and the worker of `coderl up`, watched.

Anyone who may write to a Prefect server can run commands as the user whose worker serves it: the pool takes no job
variables that say what is executed.
"""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from coderl_tasks.errors import CoderlError, InfraError
from coderl_tasks.paths import CODE_ROOT, PROJECT_ROOT
from coderl_tasks.runtime.lean_start import LEAN_VARIABLE
from coderl_tasks.runtime.prefect_server import QUIET
from coderl_tasks.services import guard
from coderl_tasks.services.supervisor import MAX_QUICK_DEATHS, QUICK_S, processes_with

WORK_POOL = "local-pool"
FIXED_VARIABLES = ("command", "env", "working_dir")
WORKER_VARIABLE = "CODERL_WORKER"
"""Names the worker of `coderl up` in its environment, and so in that of all that it starts."""


def deploy_all() -> None:
    """Create the work pool if it is missing, close it (`closed_template`), and apply prefect.yaml. Nothing else of a
    pool that exists is changed: it may have been edited. A `CoderlError` carries Prefect's words."""
    asyncio.run(_provide_work_pool())
    arguments = ["--no-prompt", "deploy", "--all", "--prefect-file", str(PROJECT_ROOT / "prefect.yaml")]
    command, environment = [sys.executable, "-m", "prefect", *arguments], {**os.environ, **QUIET, LEAN_VARIABLE: "1"}
    # In CODE_ROOT: prefect.yaml's entrypoints are relative to it.
    done = subprocess.run(command, cwd=CODE_ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CoderlError(f"`prefect {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()}")


async def _provide_work_pool() -> None:
    """See to it that the pool is there and closed; it is never there without being closed."""
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    async with get_client() as client:
        try:
            template = (await client.read_work_pool(WORK_POOL)).base_job_template
        except ObjectNotFound:
            closed = closed_template(ProcessWorker.get_default_base_job_template())
            pool = WorkPoolCreate(name=WORK_POOL, type=ProcessWorker.type, base_job_template=closed)
            await client.create_work_pool(pool)
            return
        if (closed := closed_template(template)) != template:
            await client.update_work_pool(WORK_POOL, WorkPoolUpdate(base_job_template=closed))


def closed_template(template: dict[str, Any]) -> dict[str, Any]:
    """A process pool's base job template under which a run's job variables cannot say what is executed. The variables
    that do (`FIXED_VARIABLES`: the command, the environment that its interpreter reads, the folder that it imports
    from) are taken out and fixed at their defaults, and the server refuses every variable that is not there."""
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


def run_worker(stop: threading.Event) -> int:
    """Run a worker of the pool until `stop` is set. Returns its exit code. A worker that ends by itself is replaced,
    unless MAX_QUICK_DEATHS in a row end within QUICK_S. Its flow runs are killed and set to Crashed, and a line per run
    says how to retry it. Raises InfraError if the Prefect server does not answer then."""
    import httpx

    quick_deaths = 0
    while True:
        name = f"coderl-{socket.gethostname()}-{secrets.token_hex(4)}"
        started = time.monotonic()
        code = _one_worker(name, stop)
        if stop.is_set():
            return code
        quick_deaths = quick_deaths + 1 if time.monotonic() - started < QUICK_S else 0
        restart = quick_deaths < MAX_QUICK_DEATHS
        number = -code if code < 0 else code - 128  # a signal: the guard's own, or the worker's, passed on by the guard
        ending = signal.Signals(number).name if number in set(signal.Signals) else f"exit {code}"
        print(f"the worker ended ({ending}){': starting another one' if restart else ''}", flush=True)
        # Kill its processes before setting states: a live run could set its own state afterwards. They have its name in
        # their environment. Repeat until none is left: one may start another between the listing and the kill.
        while pids := processes_with(WORKER_VARIABLE, name):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        try:
            lines = asyncio.run(_crash_runs_of(name))
        except (httpx.HTTPError, RuntimeError) as error:  # what Prefect's client raises without a server
            fault = f"as the Prefect server does not answer: {error}"
            raise InfraError(f"its flow runs still say Running, {fault}") from error
        for line in lines:
            print(line, flush=True)
        if not restart:
            return code or 1


def _one_worker(name: str, stop: threading.Event) -> int:
    worker_command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", WORK_POOL, "--name", name]
    # Flow runs print their own progress; of Prefect's lines only errors add to it. All of them are in the UI.
    # It asks its own machine's server for work, and need not wait as long as Prefect's default of 10 s in between.
    defaults = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "ERROR", "PREFECT_WORKER_QUERY_SECONDS": "2"}
    environment = {**defaults, **os.environ, **QUIET, LEAN_VARIABLE: "1", WORKER_VARIABLE: name}
    command = [sys.executable, guard.__file__, *worker_command]
    # The guard ends the worker when this pipe closes, and so even if this process is killed.
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=CODE_ROOT)
    while worker.poll() is None and not stop.wait(0.2):
        continue
    assert worker.stdin is not None
    worker.stdin.close()
    return worker.wait()


async def _crash_runs_of(worker: str) -> list[str]:
    """End the worker's unfinished flow runs and their subflows: those being cancelled become Cancelled, all others
    Crashed. Returns a line per crashed run that says how to retry it."""
    from prefect import get_client
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import FlowRun, State, StateType
    from prefect.states import Cancelled, Crashed

    unfinished = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    of_state = filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=unfinished))
    lines = []
    async with get_client() as client:

        async def end(run: FlowRun, *, cancelled: bool) -> None:
            state: State[Any] = Cancelled() if cancelled else Crashed(message="the worker of `coderl up` ended")
            await client.set_flow_run_state(run.id, state, force=True)
            of_run = filters.FlowRunFilterParentFlowRunId(any_=[run.id])
            parts = filters.FlowRunFilter(parent_flow_run_id=of_run, state=of_state)
            for part in await client.read_flow_runs(flow_run_filter=parts):
                await end(part, cancelled=cancelled)

        for run in await client.read_flow_runs(flow_run_filter=filters.FlowRunFilter(state=of_state)):
            if run.labels.get("prefect.worker.name") != worker or run.state is None:
                continue
            cancelled = run.state.is_cancelling()
            await end(run, cancelled=cancelled)
            if not cancelled:
                lines.append(f"flow run {run.name} ended with it (Crashed): `prefect flow-run retry {run.id}` goes on")
    return lines
