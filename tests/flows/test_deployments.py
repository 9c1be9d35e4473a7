"""`coderl up` as people use it: its own server and worker in their own home, and a deployment run through them."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import urlopen
from uuid import UUID, uuid4

import polars as pl
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, LogFilter, LogFilterFlowRunId
from prefect.deployments import arun_deployment
from prefect.flow_runs import aresume_flow_run

from coderl_tasks.journal.directory_lock import DirectoryLock
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.runtime.lean_start import LEAN_VARIABLE, WORKER_VARIABLE
from coderl_tasks.runtime.prefect_server import used
from coderl_tasks.runtime.worker import WORK_POOL
from coderl_tasks.services import Services
from coderl_tasks.services.supervisor import free_port
from tests import warm_start
from tests.conftest import Serve
from tests.faults.fault_proxy import FaultProxy
from tests.warm_start import Command

DEADLINE_S = 300
POLL_S = 0.5
"""Between two questions to the Prefect server, whose answers take CPU time that the flow run needs."""
LOADING = """
import sys, time
from prefect.flows import load_flow_from_entrypoint
for entrypoint in sys.argv[1:]:
    sys.modules.pop("flows", None)
    load_flow_from_entrypoint(entrypoint)
    assert "flows" in sys.modules, entrypoint
assert "tinker" in sys.modules and "torch" not in sys.modules
print("loaded", flush=True)
time.sleep(3600)
"""
"""What a worker's flow run does, up to the flow itself, with each of these entrypoints."""


@dataclass
class Up:
    """`coderl up` at work in its own home. It looks for Tinker on a port where nothing listens unless a test does."""

    home: Path
    environment: dict[str, str]
    port: int
    tinker_port: int
    process: Command = field(init=False)
    said: IO[str] = field(init=False)
    lines: list[str] = field(default_factory=list)

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        """Start it, and read what it says until it is ready."""
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as output:
            self.process = Command(self.environment, "up", "--port", self.port, output=output)
        self.said = os.fdopen(reading)
        self.lines.clear()
        while not any("prefect deployment run" in line for line in self.lines):
            self.lines.append(self.next_line())

    def next_line(self) -> str:
        """What it prints next; a test fails where it ended instead."""
        line = self.said.readline()
        assert line, self.process.communicate()[1]
        return line

    def end(self, signal_number: signal.Signals) -> str:
        """End it by a signal; what it says until nothing of it is left."""
        os.kill(self.process.pid, signal_number)
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, errors
        nothing_lives_in(self.home)
        with self.said:
            return self.said.read()

    def metrics(self) -> str:
        """What Prometheus would read."""
        with urlopen(f"http://127.0.0.1:{self.environment['CODERL_METRICS']}/metrics", timeout=DEADLINE_S) as answer:
            return str(answer.read(), "utf-8")

    def tinker(self, target: str) -> TestServer:
        """A context in which the Tinker server at `target` answers it."""
        return TestServer(FaultProxy(target, rates={}).app(), port=self.tinker_port)


@pytest.fixture(scope="module")
def up(
    flow_environment: dict[str, str],
    pool: Path,
    with_database: Callable[[Path], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Up]:
    """The session's sandbox, no Prefect server but its own. Interrupted at the end, it leaves nothing behind."""
    home, port, tinker_port = tmp_path_factory.mktemp("up"), free_port(), free_port()
    environment = own_home(flow_environment, home) | {"TINKER_BASE_URL": f"http://127.0.0.1:{tinker_port}"}
    environment["CODERL_METRICS"] = str(free_port())
    with_database(home / "coderl")
    started = Up(home, environment, port, tinker_port)
    ensure_running()  # multiprocessing's fork server: started later, it would have this home, and outlive this fixture
    started.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CODERL_HOME", environment["CODERL_HOME"])  # where its secret is
            with used(started.api_url):
                yield started
    finally:
        started.end(signal.SIGINT)


def own_home(environment: dict[str, str], home: Path) -> dict[str, str]:
    """`environment` for a `coderl up` with everything of its own in `home`, its Prefect server too."""
    folders = {"HOME": str(home), "CODERL_HOME": str(home / "coderl"), "PREFECT_HOME": str(home / "prefect")}
    return {**environment, **folders, "PREFECT_API_URL": ""}


def nothing_lives_in(home: Path) -> None:
    """Wait until all that was started with this home has ended."""
    deadline = time.monotonic() + DEADLINE_S
    while processes_in(home):
        assert time.monotonic() < deadline, f"still there: {processes_in(home)}"
        time.sleep(0.05)


def processes_in(home: Path) -> list[int]:
    """Ids of the live processes that were started with this home."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"CODERL_HOME={home}/coderl".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # ended meanwhile
                continue
    return found


async def test_a_deployment_runs_on_the_worker(up: Up, embedded: Services) -> None:
    secret = (up.home / "coderl" / "prefect" / f"secret-{urlsplit(up.api_url).port}").read_text()
    assert up.lines[0] == f"Prefect UI: {up.api_url.removesuffix('/api')}/coderl-login#{secret}\n"
    export = up.lines[-2].removeprefix("in another terminal: ").strip()
    in_a_shell = ["sh", "-c", f"{export}; env -0"]  # as printed
    said = subprocess.run(in_a_shell, env=up.environment, capture_output=True, text=True, check=True).stdout
    environment = dict(each.split("=", 1) for each in said.split("\0") if each)
    sizes = {"limit": 2, "profile_samples": 2, "max_tests": 2, "band_low": 0, "band_high": 1}
    settings = {"preset": "nano", "name": str(up.home / "pool"), **sizes, "shards": "deployment"}
    words = ("deployment", "run", "curate/local", "--params", json.dumps({"settings": settings}), "--watch")
    assert embedded.tinker_url is not None
    async with up.tinker(embedded.tinker_url):
        done = await asyncio.to_thread(warm_start.run, environment, *words, main=warm_start.prefect)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (up.home / "pool" / "manifest.json").is_file()
    kind, markdown, states, logs = await recorded()
    assert kind == "process"
    assert "2 problems kept, 0 dropped, 2 read" in markdown
    assert states == ["Completed"] * 2  # the curation and its shard
    shard = pl.read_parquet(up.home / "pool" / "shards" / "0000" / "profile-*.parquet")
    measured = [name for name in SHARD_SCHEMA if name != "difficulty"]  # what a label is, the whole profile decides
    assert shard[measured].equals(pl.read_parquet(up.home / "pool" / "profile.parquet")[measured])
    assert any(line.startswith("2 rows read from ") for line in logs) and "2 of 2 problems kept" in logs


async def recorded() -> tuple[str, Any, list[str | None], list[str]]:
    """The work pool's type, the text of the artifact `pool-pool`, the states of the runs, and what they logged."""
    async with get_client() as client:
        pool = await client.read_work_pool(WORK_POOL)
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["pool-pool"]))
        (artifact,) = await client.read_artifacts(artifact_filter=key)
        runs = await client.read_flow_runs()
        logs = [log.message for log in await client.read_logs()]
        return pool.type, artifact.data, [run.state_name for run in runs], logs


async def test_a_deployments_run_is_suspended_and_resumed(up: Up, pool: Path, embedded: Services) -> None:
    path = up.home / "waiting"
    settings = settings_of(pool, path) | {"max_steps": 1}
    run = await arun_deployment("train/local", parameters={"settings": settings}, timeout=0)
    await state_is(run.id, "Suspended")
    await logged(run.id, "no answer from Tinker")
    said = await logged(run.id, "Resume in the UI, or")
    await typed(up, said.split("`")[1])
    await state_is(run.id, "Running")
    await state_is(run.id, "Suspended")
    assert embedded.tinker_url is not None
    async with up.tinker(embedded.tinker_url):
        await aresume_flow_run(run.id)
        await state_is(run.id, "Completed")
        assert (path / "steps/000000/commit.json").is_file()


async def test_a_killed_run_a_killed_and_a_stopped_worker_and_a_cancelled_run_lose_nothing(
    up: Up, pool: Path, embedded: Services
) -> None:
    # One run, to which all of it happens: each start of one takes half a minute.
    path = up.home / "endless"
    assert embedded.tinker_url is not None
    async with up.tinker(embedded.tinker_url):
        run = await arun_deployment("train/local", parameters={"settings": settings_of(pool, path)}, timeout=0)
        await another_step(path)
        killed = holder_of(path)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: holder_of(path) != killed)  # another process goes on with it
        await another_step(path)
        kill_the_worker_of(holder_of(path))
        while "the worker ended" not in (said := await asyncio.to_thread(up.next_line)):
            continue  # what the worker itself said before
        assert said == "the worker ended (SIGKILL): starting another one\n"
        said = await asyncio.to_thread(up.next_line)
        assert (
            said.startswith("flow run endless: its worker coderl-")
            and " ended (SIGKILL); the next free worker resumes it" in said
        )
        assert holder_of(path) not in processes_in(up.home)
        await another_step(path)
        await until(lambda: 'coderl_step{run="endless"}' in up.metrics())
        (again,) = [line for line in up.metrics().splitlines() if line.startswith("coderl_runs_begun_again ")]
        assert float(again.split()[1]) >= 2
        cancel = said.split("`")[1]

        said = await asyncio.to_thread(up.end, signal.SIGTERM)
        assert "flow run endless: its " in said and "; the next free worker resumes it, unless" in said
        steps = committed(path)
        up.start()
        with used(up.api_url):  # with its new secret
            await until(lambda: committed(path) > steps)
            await typed(up, cancel)
            await state_is(run.id, "Cancelled")
            async with get_client() as client:
                assert (await client.read_flow_run(run.id)).name == "endless"
            await logged(run.id, f"to continue: coderl train log_path={path} resume=must")
    DirectoryLock(path).release()  # nobody holds it any more


def settings_of(pool: Path, run: Path) -> dict[str, Any]:
    """Those of a run without end whose steps are short."""
    sizes = {"eval_every": -1, "batch_size": 8, "group_size": 2, "max_steps": -1}
    return {"preset": "nano", "pool": str(pool), "log_path": str(run), **sizes}


def committed(run: Path) -> int:
    """How many steps are committed."""
    return len(list(run.glob("steps/*/commit.json")))


async def another_step(run: Path) -> None:
    """Wait until one more step is committed."""
    steps = committed(run)
    await until(lambda: committed(run) > steps)


async def typed(up: Up, command: str) -> None:
    """A command of `python` or `prefect` where the server of `coderl up` is exported."""
    names = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")
    environment = up.environment | {name: os.environ[name] for name in names}
    program, *words = shlex.split(command)
    main = {"python": warm_start.python, "prefect": warm_start.prefect}[program]
    done = await asyncio.to_thread(warm_start.run, environment, *words, main=main)
    assert done.returncode == 0, done.stdout + done.stderr


async def state_is(run: UUID, name: str) -> None:
    """Wait until the flow run's state has this name; none that ends it may come before."""
    async with get_client() as client:
        deadline = time.monotonic() + DEADLINE_S
        while (state := (await client.read_flow_run(run)).state) is None or state.name != name:
            assert time.monotonic() < deadline
            assert state is None or not state.is_final() or state.name == name, state
            await asyncio.sleep(POLL_S)


def holder_of(run: Path) -> int:
    """The process that holds a run directory."""
    return int(json.loads((run / "run.lock").read_text())["pid"])


def kill_the_worker_of(flow_run: int) -> None:
    """`kill -9` of the Prefect worker that started this flow run's process."""
    worker = int(Path(f"/proc/{flow_run}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"worker" in Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")
    os.kill(worker, signal.SIGKILL)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def logged(run: UUID, words: str) -> str:
    """What the flow run has logged, once `words` are in it: logs are delivered in the background, a state may be there
    first."""
    of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    deadline = time.monotonic() + DEADLINE_S
    async with get_client() as client:
        while words not in (text := "\n".join(log.message for log in await client.read_logs(of_run))):
            assert time.monotonic() < deadline, text
            await asyncio.sleep(POLL_S)
    return text[text.index(words) :]


def test_a_flow_run_starts_without_pytorch_and_ends_with_its_worker() -> None:
    entrypoints = [
        each["entrypoint"] for each in yaml.safe_load((PROJECT_ROOT / "prefect.yaml").read_text())["deployments"]
    ]
    given = {WORKER_VARIABLE: "a worker", LEAN_VARIABLE: "1", "PREFECT__FLOW_RUN_ID": str(uuid4())}
    command = ["sh", "-c", '"$@" & wait', "worker", sys.executable, "-c", LOADING, *entrypoints]
    worker = subprocess.Popen(command, cwd=PROJECT_ROOT, env=os.environ | given, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert len(entrypoints) == 5 and worker.stdout.readline() == "loaded\n"
    worker.kill()
    assert worker.communicate(timeout=DEADLINE_S) == ("", None)  # the flow run had its end of the pipe, too


def test_an_interrupt_while_it_starts_is_one_line(flow_environment: dict[str, str], tmp_path: Path) -> None:
    up = Command(own_home(flow_environment, tmp_path), "up", "--port", free_port())
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "coderl" / "logs" / "prefect.log").exists():  # the server is starting
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(up.pid, signal.SIGINT)
    output, errors = up.communicate(timeout=DEADLINE_S)
    assert (up.returncode, output, errors) == (130, "", "coderl up: interrupted\n")
    nothing_lives_in(tmp_path)


def test_a_server_that_is_not_there_is_one_line_and_exit_1(flow_environment: dict[str, str], tmp_path: Path) -> None:
    api_url = f"http://127.0.0.1:{free_port()}/api"
    environment = {**flow_environment, "PREFECT_API_URL": api_url}
    done = warm_start.run(environment, "curate", "preset=nano", f"name={tmp_path / 'pool'}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"coderl curate: no answer from the Prefect server at {api_url}: start it")
    assert done.stderr.count("\n") == 1


def test_a_prefect_server_that_fails_itself_is_one_line_and_exit_1(
    flow_environment: dict[str, str], tmp_path: Path, serve: Serve
) -> None:
    """As one whose disk is full: it answers, and can record nothing."""

    async def record(request: web.Request) -> web.StreamResponse:
        fine = request.path in ("/api/health", "/api/admin/version")
        return web.json_response("3.0.0" if fine else {"exception_message": "failed"}, status=200 if fine else 500)

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", record)])
    environment = {**flow_environment, "PREFECT_API_URL": f"{serve(app)}/api"}
    done = warm_start.run(environment, "curate", "preset=nano", f"name={tmp_path / 'pool'}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"coderl curate: the Prefect server at {environment['PREFECT_API_URL']} failed (HTTP")
    assert done.stderr.count("\n") == 1
