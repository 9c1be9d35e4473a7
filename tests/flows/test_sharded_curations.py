"""Curations whose shards are runs of a deployment end as those that profile their shards themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import run_flow_async

from coderl_tasks.addresses import joined
from coderl_tasks.errors import BudgetReachedError
from coderl_tasks.journal.ledger import Tokens, cost_price, profile_tokens
from coderl_tasks.runtime import remote_shards
from coderl_tasks.settings import CurateSettings
from flows.curate import curate
from flows.profile_shard import profile_shard

SIZES = {
    "preset": "nano", "limit": 8, "shard_size": 4, "max_tests": 2, "profile_samples": 6, "profile_round": 2,
    "check_solutions": False, "shard_deployment": "profile-shard/in-this-process", "evaluation_dataset": "none",
}  # fmt: skip
FILES = ("pool.parquet", "dropped.parquet", "profile.parquet")
POLL_S = 0.8
"""Between two questions to the Prefect server, whose answers take CPU time that the shards need."""


class Worker:
    """Runs a deployment's flow runs in this process, each as Prefect's engine would in a process of its own."""

    def __init__(self, deployment: UUID) -> None:
        self.deployment = deployment
        self.ran: list[FlowRun] = []

    async def work(self, client: PrefectClient) -> None:
        """Take up what is scheduled, until cancelled."""
        scheduled = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[self.deployment]),
            state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Scheduled"])),
        )
        tasks: set[asyncio.Task[object]] = set()
        taken: set[UUID] = set()
        while True:
            for run in await client.read_flow_runs(flow_run_filter=scheduled):
                if run.id not in taken:
                    taken.add(run.id)
                    self.ran.append(run)
                    work = run_flow_async(profile_shard, flow_run=run, parameters=run.parameters, return_type="state")
                    tasks.add(asyncio.create_task(work))
            await asyncio.sleep(POLL_S)


@pytest.fixture
async def worker(servers: None, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr(remote_shards, "POLL_S", POLL_S)
    async with at_work() as worker:
        yield worker


@asynccontextmanager
async def at_work() -> AsyncIterator[Worker]:
    async with get_client() as client:
        flow = await client.create_flow(profile_shard)
        deployment = await client.create_deployment(flow, "in-this-process")
        worker = Worker(deployment)
        working = asyncio.create_task(worker.work(client))
        try:
            yield worker
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def settings_of(name: Path, **changes: object) -> CurateSettings:
    return CurateSettings.model_validate({**SIZES, "name": str(name), **changes})


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"profile_mode": "screen", "screen_skip": 0.3}, 4),
        ({"mix": {"hard": 1, "medium": 1, "easy": 1}, "label_samples": 4}, 2),
    ],
    ids=["screen", "labels"],
)
async def test_a_profile_in_several_passes_is_the_same_over_shards(
    worker: Worker, tmp_path: Path, changes: dict[str, object], passes: int
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    await curate(settings_of(here, **changes))
    await curate(settings_of(elsewhere, **changes, shards="deployment"))
    for file in FILES:
        assert (here / file).read_bytes() == (elsewhere / file).read_bytes(), file
    runs = len(worker.ran)
    assert 2 < runs <= 2 * passes
    (elsewhere / "manifest.json").unlink()  # as if it had been killed at its end
    await curate(settings_of(elsewhere, **changes, shards="deployment"))
    assert len(worker.ran) == runs, "every pass of every shard is recorded"
    assert (here / "pool.parquet").read_bytes() == (elsewhere / "pool.parquet").read_bytes()


async def test_a_runs_policy_is_profiled_over_shards(worker: Worker, run: Path, tmp_path: Path) -> None:
    for name, shards in (("here", "here"), ("elsewhere", "deployment")):
        await curate(settings_of(tmp_path / name, from_run=str(run), evaluation_dataset=None, shards=shards))
    for file in FILES:
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "elsewhere" / file).read_bytes(), file
    assert len(worker.ran) == 2


async def test_a_cap_holds_over_shards_and_a_higher_one_goes_on(worker: Worker, s3: str, tmp_path: Path) -> None:
    address = joined(s3, uuid4().hex)
    options = {"shards": "deployment", "shard_address": address, "profile_mode": "fixed"}
    options |= {"prices": "prefill:10,sample:20"}
    price = cost_price(settings_of(tmp_path, **options))
    assert price is not None

    def usd(pool: Path) -> float:
        spent = price.usd(profile_tokens(joined(address, pool.name)))
        assert spent is not None
        return spent

    uncapped, capped = tmp_path / "uncapped", tmp_path / "capped"
    await curate(settings_of(uncapped, **options))
    whole = usd(uncapped)
    completion = 2 * settings_of(tmp_path, **options).max_tokens
    dearest = price.usd(Tokens(prompt=200, cached=200, completion=completion))  # prompts have at most 200 tokens
    assert dearest is not None
    for share in (0.3, 0.7):
        most = share * whole
        before = len(worker.ran)
        with pytest.raises(BudgetReachedError, match=r"max_usd=.* is reached"):
            await curate(settings_of(capped, **options, max_usd=most))
        assert most - dearest < usd(capped) <= most, "what is left is too little for the next group, in whatever order"
        assert all(run.parameters["settings"]["max_usd"] is not None for run in worker.ran[before:])
        assert 0 < len(worker.ran) - before <= 2 + 2, "each shard has a part, and once all that is left"
    await curate(settings_of(capped, **options, max_usd=2 * whole))
    assert usd(capped) == whole, "nothing was sampled twice"
    for file in FILES:
        assert (uncapped / file).read_bytes() == (capped / file).read_bytes(), file


async def test_without_a_worker_shards_are_profiled_here_within_the_cap(
    servers: None, prefect_api: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote_shards, "POLL_S", POLL_S)
    monkeypatch.setattr(remote_shards, "TAKE_UP_S", 1.0)
    async with get_client() as client:
        await client.create_deployment(await client.create_flow(profile_shard), "in-this-process")
    options = {"limit": 8, "profile_mode": "fixed", "profile_samples": 2}
    await curate(settings_of(tmp_path / "here", **options))
    whole = profile_tokens(str(tmp_path / "here")).counted
    pool = tmp_path / "elsewhere"
    with pytest.raises(BudgetReachedError, match=r"max_tokens_total=.* is reached"):
        await curate(settings_of(pool, **options, shards="deployment", max_tokens_total=int(0.6 * whole)))
    assert 0 < profile_tokens(str(pool)).counted <= 0.6 * whole
    await curate(settings_of(pool, **options, shards="deployment", max_tokens_total=4 * whole))
    assert profile_tokens(str(pool)).counted == whole, "nothing was sampled twice"
    for file in FILES:
        assert (tmp_path / "here" / file).read_bytes() == (pool / file).read_bytes(), file
