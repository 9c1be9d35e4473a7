"""A phase is tried again where a service failed, and given up at once where that cannot help."""

import asyncio
from dataclasses import dataclass

import pytest
from prefect import task
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from coderl_tasks.errors import BudgetReachedError, ConfigError, DataError, InfraError, SandboxDownError
from coderl_tasks.retries import PHASE, without_prefect

OF_EACH_ERROR = pytest.mark.parametrize(
    ("error", "times"),
    [
        (InfraError("no answer"), 5),
        (SandboxDownError("no answer"), 5),
        (ConfigError("the key is refused"), 1),
        (DataError("no such file"), 1),
        (BudgetReachedError("max_usd", 1.0, "all is spent", flow="train"), 1),
        (ValueError("a bug"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)


@dataclass
class Failing:
    """A phase that counts how often it is tried."""

    error: Exception
    tried: int = 0

    async def __call__(self) -> None:
        self.tried += 1
        raise self.error


@OF_EACH_ERROR
async def test_a_phase_is_tried_five_times_where_a_service_fails_and_else_once(
    error: Exception, times: int, prefect_api: str
) -> None:
    failing = Failing(error)
    phase = task(failing.__call__, **PHASE).with_options(retry_delay_seconds=0)
    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}), pytest.raises(type(error)):
        await phase()
    assert failing.tried == times


@OF_EACH_ERROR
async def test_a_phase_without_prefect_is_tried_as_often_with_growing_pauses(
    error: Exception, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    failing = Failing(error)
    with pytest.raises(type(error)):
        await without_prefect(task(failing.__call__, **PHASE))()
    assert (failing.tried, pauses) == (times, [2, 4, 8, 16][: times - 1])
