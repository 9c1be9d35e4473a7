"""This flow run in Prefect: its name and its artifacts, which people read and the work does not depend on."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

import httpx
from prefect import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from coderl_tasks.insight.report import publish

PAUSE_S = 600.0
KEPT_RESULTS = 200
Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


class BestEffort:
    """Calls to the Prefect server that the work does not depend on, skipped for a while after a failure: Prefect's
    client takes a minute to fail on a lost server."""

    def __init__(self) -> None:
        self._next_try = 0.0

    async def call(self, what: str, request: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """The answer to `request`; None, and a warning that names `what`, if the server does not give one."""
        if time.monotonic() < self._next_try:
            return None
        try:
            return await request()
        except (httpx.HTTPError, PrefectException) as error:
            logger.warning("%s was not published: %s", what, str(error) or type(error).__name__)
            self._next_try = time.monotonic() + PAUSE_S
            return None


best_effort = BestEffort()
"""One per process: there is one Prefect server, and a call that finds it gone spares the others the wait."""


async def name_flow_run(name: str, *, root: bool = False) -> None:
    """Give this flow run, and with `root` the one that it is a part of, the name of its directory in the Prefect UI."""

    async def rename() -> None:
        runs = {flow_run.id, flow_run.root_flow_run_id if root else None} - {None}
        async with get_client() as client:
            for run in runs:
                await client.update_flow_run(UUID(run), name=name)

    await best_effort.call(f"the name {name}", rename)


async def publish_or_warn(kind: str, name: str, markdown: str) -> None:
    await best_effort.call(f"the artifact {kind}-{name}", lambda: publish(kind, name, markdown))


def forget_old_results(kept: int = KEPT_RESULTS) -> None:
    """Let go of all but the newest that Prefect remembers of finished tasks: some 8 KB each, for as long as the flow
    runs, to draw which task is handed what another one returned."""
    context = FlowRunContext.get()
    if context is not None:
        for result in list(context.run_results)[:-kept]:
            del context.run_results[result]
