"""Which failures of a task are retryable: those of a service. Bad settings, bad data and bugs fail at once."""

import logging
from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import State
from prefect.tasks import Task, exponential_backoff

from coderl_tasks.errors import InfraError

RETRIES = 4
logger = logging.getLogger(__name__)


def is_retryable(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether the failure in `state` is a service's, so that trying again can help; asked while tries are left."""
    retryable = isinstance(state.data, InfraError)
    if retryable:
        logger.warning("%s failed, trying again: %s", run.name, state.data)
    return retryable


PHASE: dict[str, Any] = {
    "retries": RETRIES,
    "retry_delay_seconds": exponential_backoff(backoff_factor=2),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": is_retryable,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Options of every phase task: retried after 2, 4, 8, 16 s with jitter. The journal remembers results, not Prefect."""
