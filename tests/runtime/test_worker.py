"""Flow runs that nobody works on any more, on a Prefect server of the session's: what they ran on is only said here."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling, Crashed, Running, State

from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import CODE_ROOT, PROJECT_ROOT
from coderl_tasks.runtime import worker
from coderl_tasks.runtime.prefect_server import used
from coderl_tasks.runtime.worker import (
    JOBS_POOL,
    WORK_POOL,
    WORKER_LABEL,
    LostRuns,
    deploy_all,
    deploy_jobs,
    end_run,
)
from coderl_tasks.services.supervisor import free_port
from tests import warm_start
from tests.warm_start import Command

HEARTBEAT_S = 1
TakeUp = Callable[[str, State], Awaitable[UUID]]
"""Makes a run of train/local that the worker of this name has taken up, in this state."""


pytestmark = pytest.mark.usefixtures("deployed")


@pytest.fixture
async def client(prefect_api: str) -> AsyncIterator[PrefectClient]:
    async with get_client() as client:
        yield client


@pytest.fixture
def job_template() -> dict[str, Any]:
    """The one of docs/kubernetes."""
    manifests = yaml.safe_load_all((PROJECT_ROOT / "docs" / "kubernetes" / "coderl.yaml").read_text())
    (found,) = [one for one in manifests if one["kind"] == "ConfigMap" and "jobs.json" in one["data"]]
    template: dict[str, Any] = json.loads(found["data"]["jobs.json"])
    return template


@pytest.fixture
def take_up(client: PrefectClient) -> TakeUp:
    async def taken_up(name: str, state: State) -> UUID:
        deployment = await client.read_deployment_by_name("train/local")
        run = await client.create_flow_run_from_deployment(deployment.id)
        await client.update_flow_run_labels(run.id, {WORKER_LABEL: name})
        await client.set_flow_run_state(run.id, state, force=True)
        return run.id

    return taken_up


@pytest.fixture
def names() -> tuple[str, str]:
    """A live worker of this process, and one that is gone. The live one acts first: it is first by name."""
    unique = uuid4().hex
    return f"a-{unique}", f"b-{unique}"


async def states_of(client: PrefectClient, run: UUID) -> list[str]:
    states = await client.read_flow_run_states(run)
    return [state.name or "" for state in sorted(states, key=lambda state: state.timestamp)]


async def heartbeat(client: PrefectClient, name: str) -> None:
    await client.send_worker_heartbeat(WORK_POOL, name, heartbeat_interval_seconds=HEARTBEAT_S)


async def look_until(client: PrefectClient, lost: LostRuns, is_done: Callable[[], Awaitable[bool]]) -> None:
    """Look as `coderl up` does while its worker lives, until it `is_done`."""
    while not await is_done():
        await heartbeat(client, lost.own_workers[-1])
        await lost.check_pool(client)
        await asyncio.sleep(0.1)


async def test_runs_of_a_worker_without_heartbeats_are_ended_and_begun_again(
    client: PrefectClient, take_up: TakeUp, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, gone = names
    monkeypatch.setattr(worker, "PAGE", 1)  # as with more runs than Prefect returns at once
    await heartbeat(client, gone)
    working = await take_up(live, Running())
    runs = [await take_up(gone, Running()) for _ in range(2)]
    being_cancelled = await take_up(gone, Cancelling())
    crashed = await take_up(gone, Crashed(message="Execution was terminated by SIGTERM"))  # as it could still say

    async def all_begun() -> bool:
        return all([(await states_of(client, run))[-1] == "AwaitingRetry" for run in (*runs, crashed)])

    monkeypatch.setattr(worker, "SETTLED_S", 0.0)
    await look_until(client, LostRuns(own_workers=[live]), all_begun)
    for run in runs:
        assert (await states_of(client, run))[-3:] == ["Running", "Crashed", "AwaitingRetry"]
        (log,) = await client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run])))
        assert log.message.startswith(f"its worker {gone} has sent no heartbeat for ")
        assert f"unless `prefect flow-run cancel {run}` ends it" in log.message
    assert (await states_of(client, being_cancelled))[-1] == "Cancelled"
    assert (await states_of(client, working))[-1] == "Running"


async def test_an_outage_of_the_server_loses_no_worker(
    client: PrefectClient, take_up: TakeUp, names: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    live, other = names
    lost, run = LostRuns(own_workers=[live]), await take_up(other, Running())
    await heartbeat(client, other)
    await lost.check_pool(client)
    lost._last_heartbeats = worker._FirstSeen(
        {key: (value, at - 60) for key, (value, at) in lost._last_heartbeats.items()}
    )
    with used(f"http://127.0.0.1:{free_port()}/api"):
        assert not await asyncio.to_thread(lost._send, lost.check_pool)
    for _ in range(3):  # it answers again, and the worker has not come to send a heartbeat yet
        await lost.check_pool(client)
    assert (await states_of(client, run))[-1] == "Running"
    assert capfd.readouterr().out.count("the Prefect server does not answer") == 1


def test_a_refused_request_is_said_once_until_one_succeeds_and_the_server_counts_as_up(
    prefect_api: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def refused(client: PrefectClient) -> None:
        raise ValueError("odd")

    async def fine(client: PrefectClient) -> None: ...

    lost = LostRuns(own_workers=[])
    with used(f"http://127.0.0.1:{free_port()}/api"):
        assert not lost._send(lost.check_pool)
    assert [lost._send(request) for request in (refused, refused, fine, refused)] == [False, False, True, False]
    assert [line.partition(":")[0] for line in capfd.readouterr().out.splitlines()] == [
        "the Prefect server does not answer",
        "the Prefect server answers again",
        *["looking for lost flow runs"] * 2,
    ]
    assert {metric.name: metric.samples[0].value for metric in lost.counted() if metric.samples}[
        "coderl_prefect_up"
    ] == 1


async def test_a_run_whose_process_crashed_is_begun_again_a_number_of_times(
    client: PrefectClient,
    take_up: TakeUp,
    names: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    live, other = names
    monkeypatch.setattr(worker, "SETTLED_S", 0.0)
    monkeypatch.setattr(worker, "MOST_CRASHES", 1)
    lost, run = LostRuns(own_workers=[live]), await take_up(live, Crashed(message="out of memory"))
    others = await take_up(other, Crashed())

    async def is_begun() -> bool:
        return (await states_of(client, run))[-1] == "AwaitingRetry"

    await look_until(client, lost, is_begun)
    assert "its process ended (out of memory); the next free worker resumes it" in capfd.readouterr().out
    await client.set_flow_run_state(run, Crashed(), force=True)
    said = ""
    while "crashed 2 times within a day and is not restarted" not in said:
        await lost.check_pool(client)
        said += capfd.readouterr().out
    await lost.check_pool(client)
    assert capfd.readouterr().out == ""  # it is said once
    assert [(await states_of(client, each))[-1] for each in (run, others)] == ["Crashed", "Crashed"]


async def test_runs_end_with_their_worker_whether_or_not_they_said_so_themselves(
    client: PrefectClient, take_up: TakeUp, names: tuple[str, str]
) -> None:
    live, other = names
    unsaid, said, others = (
        await take_up(live, Running()),
        await take_up(live, Crashed()),
        await take_up(other, Running()),
    )
    lost = LostRuns(own_workers=[live])
    await asyncio.to_thread(lost.end_runs_of, live, "was stopped")
    assert [(await states_of(client, run))[-1] for run in (unsaid, said)] == ["AwaitingRetry", "AwaitingRetry"]
    assert (await states_of(client, others))[-1] == "Running"


async def test_two_hosts_may_make_the_work_pool_at_once(client: PrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WORK_POOL", name := f"new-{uuid4().hex}")
    monkeypatch.setattr(worker, "_deploy", lambda prefect_file: None)  # which is slow, and is not what may fail
    await asyncio.gather(asyncio.to_thread(deploy_all), asyncio.to_thread(deploy_all))
    template = (await client.read_work_pool(name)).base_job_template
    assert worker.closed_template(template) == template


async def test_a_kubernetes_pool_gets_the_deployments_and_takes_no_command(
    client: PrefectClient, tmp_path: Path, job_template: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One, by a name of its own: tests of other processes rely on where those of prefect.yaml are.
    content = yaml.safe_load((PROJECT_ROOT / "prefect.yaml").read_text())
    [train] = [each for each in content["deployments"] if each["entrypoint"] == "flows/train.py:train"]
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump(content | {"deployments": [train | {"name": "jobs"}]}))
    monkeypatch.setattr(worker, "PROJECT_ROOT", tmp_path)
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(job_template))
    await worker.provide_pool(JOBS_POOL, "kubernetes", lambda template: {})  # of another version
    await asyncio.to_thread(deploy_jobs, file)
    pool = await client.read_work_pool(JOBS_POOL)
    assert (pool.type, pool.base_job_template) == ("kubernetes", job_template)
    deployment = await client.read_deployment_by_name("train/jobs")
    assert deployment.work_pool_name == JOBS_POOL
    folder = {"directory": str(CODE_ROOT)}  # the deploying image's, which the jobs have too
    assert deployment.pull_steps == [{"prefect.deployments.steps.set_working_directory": folder}]
    run = await client.create_flow_run_from_deployment(deployment.id, job_variables={"memory": "64Gi"})
    assert run.job_variables == {"memory": "64Gi"}
    with pytest.raises(PrefectHTTPStatusError, match="Additional properties"):
        await client.create_flow_run_from_deployment(deployment.id, job_variables={"command": "id"})


@pytest.mark.parametrize("text", ["", "{}", '{"job_configuration": {}}', "[]"])
def test_a_template_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    (file := tmp_path / "jobs.json").write_text(text)
    with pytest.raises(ConfigError, match="is no base job template of a Kubernetes work pool"):
        deploy_jobs(file)


PARENT_AND_PART = """
import time
from prefect import flow, runtime

@flow
def part():
    print(runtime.flow_run.id, flush=True)
    time.sleep(600)

@flow
def whole():
    print(runtime.flow_run.id, flush=True)
    part()

whole()
"""


async def test_the_parts_of_a_flow_run_end_with_it(client: PrefectClient) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as said:
        with os.fdopen(writing, "w") as output:
            process = Command(dict(os.environ), "-c", PARENT_AND_PART, main=warm_start.python, output=output)
        runs = [UUID((await asyncio.to_thread(said.readline)).strip()) for _ in range(2)]
    process.kill()
    process.wait()
    await end_run(client, await client.read_flow_run(runs[0]), cancelled=False, why="of this test")
    assert [(await states_of(client, run))[-1] for run in runs] == ["Crashed", "Crashed"]
