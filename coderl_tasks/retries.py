"""Which failures of a task are retryable: those of a service. Bad settings, bad data and bugs fail at once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import State
from prefect.tasks import Task, exponential_backoff

from coderl_tasks.errors import InfraError

RETRIES = 4
P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger(__name__)


def is_retryable(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether the failure in `state` is a service's, so that trying again can help; asked while tries are left."""
    retryable = isinstance(state.data, InfraError)
    if retryable:
        logger.warning("%s failed, trying again: %s", run.name, state.data)
    return retryable


DELAYS = exponential_backoff(backoff_factor=2)
PHASE: dict[str, Any] = {
    "retries": RETRIES,
    "retry_delay_seconds": DELAYS,
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": is_retryable,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Options of every phase task: retried after 2, 4, 8, 16 s with jitter. The journal remembers results, not Prefect."""


def without_prefect(phase: Task[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """`phase`, for callers without Prefect: tried again as the task is, without jitter."""

    async def tried(*args: P.args, **kwargs: P.kwargs) -> T:
        for delay in DELAYS(RETRIES):
            try:
                return await phase.fn(*args, **kwargs)
            except InfraError as error:
                logger.warning("trying again in %g s: %s", delay, error)
                await asyncio.sleep(delay)
        return await phase.fn(*args, **kwargs)

    return tried
