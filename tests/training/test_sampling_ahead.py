"""Which step is sampled when, and what becomes of one that is under way at the end."""

import asyncio

import polars as pl
import pytest

from coderl_tasks.errors import InfraError
from coderl_tasks.training.step import PhaseResult, SamplingAhead


class Sampling:
    """Notes which steps begin and end; `failing` fails, `held` waits for ever."""

    def __init__(self, failing: int | None = None, held: int | None = None) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._failing, self._held = failing, held

    async def __call__(self, step: int) -> PhaseResult:
        self.begun.append(step)
        if step == self._failing:
            raise InfraError("no service")
        try:
            await (asyncio.Event().wait() if step == self._held else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled.append(step)
            raise
        self.ended.append(step)
        return PhaseResult(pl.DataFrame({"step": [step]}))


@pytest.mark.parametrize("lag", [1, 3])
async def test_further_steps_are_under_way_when_one_is_sampled(lag: int) -> None:
    sampling = Sampling(held=lag + 1)
    async with SamplingAhead(sampling, lambda step: True, lag) as ahead:
        await ahead.sampled(0)
        assert sampling.begun == list(range(lag + 1)), "in order, and none that needs an update that is not made yet"
        assert (await ahead.sampled(1)).rollouts["step"].to_list() == [1], "what was sampled ahead is handed on"
        await asyncio.sleep(0)
        assert sampling.begun == list(range(lag + 2))
        assert sampling.ended == list(range(lag + 1))
    assert sampling.cancelled == [lag + 1]


async def test_without_lag_no_step_is_begun_ahead() -> None:
    sampling = Sampling()
    async with SamplingAhead(sampling, lambda step: True, 0) as ahead:
        for step in range(3):
            await ahead.sampled(step)
            await asyncio.sleep(0)
            assert sampling.begun == list(range(step + 1))


async def test_nothing_is_begun_that_may_not_be() -> None:
    sampling = Sampling()
    async with SamplingAhead(sampling, lambda step: step == 2) as ahead:
        for step in range(4):
            await ahead.sampled(step)
            await asyncio.sleep(0)
            assert sampling.begun == list(range(step + (2 if step == 1 else 1)))


async def test_what_failed_ahead_is_tried_again_in_its_turn() -> None:
    sampling = Sampling(failing=1)
    async with SamplingAhead(sampling, lambda step: step <= 1) as ahead:
        await ahead.sampled(0)
        await asyncio.sleep(0)
        with pytest.raises(InfraError):
            await ahead.sampled(1)
    assert sampling.begun == [0, 1, 1]


async def test_what_fails_in_its_turn_is_raised() -> None:
    sampling = Sampling(failing=0)
    async with SamplingAhead(sampling, lambda step: True, 2) as ahead:
        with pytest.raises(InfraError):
            await ahead.sampled(0)
    assert sampling.begun.count(0) == 1


async def test_steps_under_way_that_are_skipped_are_cancelled() -> None:
    sampling = Sampling(held=1)
    async with SamplingAhead(sampling, lambda step: step == 1, 2) as ahead:
        await ahead.sampled(0)
        await asyncio.sleep(0)
        await ahead.sampled(5)
    assert (sampling.ended, sampling.cancelled) == ([0, 5], [1])
