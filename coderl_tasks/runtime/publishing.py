"""Artifacts in the Prefect UI: made for people, so a server that cannot take one never stops the work."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
from prefect.exceptions import PrefectException

from coderl_tasks.insight.artifacts import publish

PAUSE_S = 600.0
Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


class Courtesy:
    """Calls to the Prefect server that the work does not depend on.

    Prefect's client takes a minute to give up a lost server, so after a failure such calls are left out for a while.
    """

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


courtesy = Courtesy()
"""The process's own: there is one Prefect server, and who finds it gone spares the others the wait."""


async def publish_or_warn(kind: str, name: str, markdown: str) -> None:
    """Publish an artifact; if the Prefect server does not take it, that is logged."""
    await courtesy.call(f"the artifact {kind}-{name}", lambda: publish(kind, name, markdown))
