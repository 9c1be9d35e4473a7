"""The deployments of prefect.yaml, which `coderl up` makes."""

import asyncio
from collections.abc import Iterator

import pytest
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.workers.process import ProcessWorker

from coderl_tasks.runtime.worker import WORK_POOL, deploy_all
from tests.conftest import Share


@pytest.fixture(scope="session")
def deployed(prefect_api: str, share: Share) -> Iterator[None]:
    """They are on the session's Prefect server, in a work pool that was there before. To make them takes seconds of CPU
    time."""

    def deploy(_: object) -> None:
        asyncio.run(make_edited_work_pool())
        deploy_all()

    with share("deployments", deploy):
        yield


async def make_edited_work_pool() -> None:
    """A pool as Prefect makes it, with what a user may have edited in it."""
    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["env"]["default"] = {"KEPT": "1"}
    async with get_client() as client:
        await client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template))
        await client.update_work_pool(WORK_POOL, WorkPoolUpdate(concurrency_limit=3))
