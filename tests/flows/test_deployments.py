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
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pytest
from aiohttp.test_utils import TestServer
from fault_proxy import FaultProxy
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, LogFilter, LogFilterFlowRunId
from prefect.deployments import arun_deployment
from prefect.flow_runs import aresume_flow_run
from prefect.states import AwaitingRetry

from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.local.supervisor import free_port
from coderl_tasks.orchestration import WORK_POOL, used
from coderl_tasks.services import Services

DEADLINE_S = 300


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home for `coderl up`, and for this process beside it; nothing that was started with it may live on."""
    monkeypatch.setenv("CODERL_HOME", str(tmp_path / "coderl"))
    yield tmp_path
    deadline = time.monotonic() + DEADLINE_S
    while processes_in(tmp_path):
        assert time.monotonic() < deadline, f"still there: {processes_in(tmp_path)}"
        time.sleep(0.05)


@pytest.fixture
def environment(flow_environment: dict[str, str], home: Path) -> dict[str, str]:
    """The session's Tinker server and sandbox, but no Prefect server."""
    folders = {"HOME": str(home), "CODERL_HOME": str(home / "coderl"), "PREFECT_HOME": str(home / "prefect")}
    return {**flow_environment, **folders, "PREFECT_API_URL": ""}


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


def start_up(environment: dict[str, str], port: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "coderl_tasks.cli", "up", "--port", str(port)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_a_deployment_runs_on_the_worker_and_nothing_is_left_behind(environment: dict[str, str], home: Path):
    port = free_port()
    up = start_up(environment, port)
    assert up.stdout is not None
    try:
        lines = []
        while not any("prefect deployment run" in line for line in lines):
            lines.append(up.stdout.readline())
            assert lines[-1], up.communicate()[1]
        api_url = f"http://127.0.0.1:{port}/api"
        secret = (home / "coderl" / "prefect" / f"secret-{port}").read_text()
        assert lines[0] == f"Prefect UI: http://127.0.0.1:{port}/coderl-login#{secret}\n"
        export = lines[-2].removeprefix("in another terminal: ").strip()
        sizes = {"limit": 4, "shard_size": 2, "profile_samples": 2, "max_tests": 2, "band_low": 0, "band_high": 1}
        sizes["shards"] = "deployment"
        settings = {"preset": "nano", "name": str(home / "pool"), **sizes}
        arguments = ["deployment", "run", "curate/local", "--params", json.dumps({"settings": settings}), "--watch"]
        command = shlex.join([sys.executable, "-m", "prefect", *arguments])
        done = subprocess.run(
            ["sh", "-c", f"{export}; {command}"],  # as printed
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert (home / "pool" / "manifest.json").is_file()
        with used(api_url):
            kind, markdown, states, logs = asyncio.run(recorded())
        assert kind == "process"
        assert "4 problems kept, 0 dropped, 4 read" in markdown
        assert states == ["Completed"] * 3  # the curation and its two shards
        shards = [pl.read_parquet(home / "pool" / "shards" / f"{n:04d}" / "profile.parquet") for n in range(2)]
        assert pl.concat(shards).equals(pl.read_parquet(home / "pool" / "profile.parquet"))
        assert any(line.startswith("4 rows read from ") for line in logs) and "4 of 4 problems kept" in logs
    finally:
        up.send_signal(signal.SIGINT)
        _, errors = up.communicate(timeout=DEADLINE_S)
    assert up.returncode == 0, errors


async def recorded() -> tuple[str, Any, list[str | None], list[str]]:
    """The work pool's type, the text of the artifact `pool-pool`, the states of the runs, and what they logged."""
    async with get_client() as client:
        pool = await client.read_work_pool(WORK_POOL)
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["pool-pool"]))
        (artifact,) = await client.read_artifacts(artifact_filter=key)
        runs = await client.read_flow_runs()
        logs = [log.message for log in await client.read_logs()]
        return pool.type, artifact.data, [run.state_name for run in runs], logs


async def test_a_deployments_run_is_suspended_resumed_killed_retried_and_cancelled_and_loses_nothing(
    environment: dict[str, str], home: Path, pool: Path, embedded: Services
):
    tinker, port = free_port(), free_port()
    up = start_up({**environment, "TINKER_BASE_URL": f"http://127.0.0.1:{tinker}"}, port)
    assert up.stdout is not None
    api_url = f"http://127.0.0.1:{port}/api"
    try:
        while "prefect deployment run" not in (line := await asyncio.to_thread(up.stdout.readline)):
            assert line, up.communicate()[1]
        with used(api_url):
            settings = {"preset": "nano", "pool": str(pool), "eval_every": -1, "batch_size": 8, "group_size": 2}
            waiting = {**settings, "log_path": str(home / "waiting"), "max_steps": 1}
            run = await arun_deployment("train/local", parameters={"settings": waiting}, timeout=0)
            await state_is(run.id, "Suspended")
            await logged(run.id, "no answer from Tinker")
            await logged(run.id, f"`prefect flow-run resume {run.id}`")
            await aresume_flow_run(run.id)
            await state_is(run.id, "Running")
            await state_is(run.id, "Suspended")
            assert embedded.tinker_url is not None
            async with TestServer(FaultProxy(embedded.tinker_url, rates={}).app(), port=tinker):
                await aresume_flow_run(run.id)
                await state_is(run.id, "Completed")
                assert (home / "waiting/steps/000000/commit.json").is_file()
                endless = {**settings, "log_path": str(home / "endless"), "max_steps": -1}
                run = await arun_deployment("train/local", parameters={"settings": endless}, timeout=0)
                await until(lambda: (home / "endless/steps/000000/commit.json").is_file())
                os.kill(holder_of(home / "endless"), signal.SIGKILL)
                await state_is(run.id, "Crashed")
                steps = len(list(home.glob("endless/steps/*/commit.json")))
                async with get_client() as client:  # what the UI's Retry does
                    await client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
                await until(lambda: (home / f"endless/steps/{steps:06d}/commit.json").is_file())
                kill_the_worker_of(holder_of(home / "endless"))
                while "the worker ended" not in (said := await asyncio.to_thread(up.stdout.readline)):
                    assert said  # what the worker itself said before
                assert said == "the worker ended (SIGKILL): starting another one\n"
                said = await asyncio.to_thread(up.stdout.readline)
                assert said.startswith("flow run endless ended with it (Crashed): `prefect flow-run retry ")
                assert holder_of(home / "endless") not in processes_in(home)
                await state_is(run.id, "Crashed")
                steps = len(list(home.glob("endless/steps/*/commit.json")))
                retry = [sys.executable, "-m", *said.split("`")[1].split()]
                environment = {**environment, "PREFECT_API_URL": api_url}
                environment["PREFECT_API_AUTH_STRING"] = os.environ["PREFECT_API_AUTH_STRING"]
                await asyncio.to_thread(subprocess.run, retry, env=environment, check=True, capture_output=True)
                await until(lambda: (home / f"endless/steps/{steps:06d}/commit.json").is_file())
                cancelled = [sys.executable, "-m", "prefect", "flow-run", "cancel", str(run.id)]
                await asyncio.to_thread(subprocess.run, cancelled, env=environment, check=True, capture_output=True)
                await state_is(run.id, "Cancelled")
                async with get_client() as client:
                    assert (await client.read_flow_run(run.id)).name == "endless"
                await logged(run.id, f"coderl train log_path={home / 'endless'} resume=must goes on")
            RunDirectory.open(home / "endless", {}, may_change=("*",)).close()  # nobody holds it any more
    finally:
        up.send_signal(signal.SIGINT)
        _, errors = await asyncio.to_thread(up.communicate, timeout=DEADLINE_S)
    assert up.returncode == 0, errors


async def state_is(run: UUID, name: str) -> None:
    """Wait until the flow run's state has this name; none that ends it may come before."""
    async with get_client() as client:
        deadline = time.monotonic() + DEADLINE_S
        while (state := (await client.read_flow_run(run)).state) is None or state.name != name:
            assert time.monotonic() < deadline
            assert state is None or not state.is_final() or state.name == name, state
            await asyncio.sleep(0.1)


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


async def logged(run: UUID, words: str) -> None:
    """Wait until the flow run has logged `words`: logs are delivered in the background, a state may be there first."""
    of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    deadline = time.monotonic() + DEADLINE_S
    async with get_client() as client:
        while words not in (text := "\n".join(log.message for log in await client.read_logs(of_run))):
            assert time.monotonic() < deadline, text
            await asyncio.sleep(0.1)


def test_an_interrupt_while_it_starts_is_one_line(environment: dict[str, str], home: Path):
    up = start_up(environment, free_port())
    deadline = time.monotonic() + DEADLINE_S
    while not (home / "coderl" / "logs" / "prefect.log").exists():  # the server is starting
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(up.pid, signal.SIGINT)
    output, errors = up.communicate(timeout=DEADLINE_S)
    assert (up.returncode, output, errors) == (130, "", "coderl up: interrupted\n")


def test_a_server_that_is_not_there_is_one_line_and_exit_1(flow_environment: dict[str, str], tmp_path: Path):
    api_url = f"http://127.0.0.1:{free_port()}/api"
    command = [sys.executable, "flows/curate.py", "preset=nano", f"name={tmp_path / 'pool'}"]
    environment = {**flow_environment, "PREFECT_API_URL": api_url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"coderl curate: no answer from the Prefect server at {api_url}: start it")
    assert done.stderr.count("\n") == 1
