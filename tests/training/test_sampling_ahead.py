"""Which step is sampled when, and what becomes of one that is under way at the end."""

import asyncio

import polars as pl
import pytest

from coderl_tasks.errors import InfraError
from coderl_tasks.training.step import Phase, SamplingAhead


class Sampling:
    """Notes which steps begin and end; `failing` fails, `held` waits for ever."""

    def __init__(self, failing: int | None = None, held: int | None = None) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._failing, self._held = failing, held

    async def __call__(self, step: int) -> Phase:
        self.begun.append(step)
        if step == self._failing:
            raise InfraError("no service")
        try:
            await (asyncio.Event().wait() if step == self._held else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled.append(step)
            raise
        self.ended.append(step)
        return Phase(pl.DataFrame({"step": [step]}))


async def test_the_next_step_is_under_way_when_one_is_sampled() -> None:
    sampling = Sampling(held=2)
    async with SamplingAhead(sampling, lambda step: True) as ahead:
        await ahead.sampled(0)
        await asyncio.sleep(0)
        assert (sampling.begun, sampling.ended) == ([0, 1], [0])
        assert (await ahead.sampled(1)).rollouts["step"].to_list() == [1], "what was sampled ahead is handed on"
        await asyncio.sleep(0)
        assert (sampling.begun, sampling.ended) == ([0, 1, 2], [0, 1])
    assert sampling.cancelled == [2]


async def test_nothing_is_begun_that_may_not_be() -> None:
    sampling = Sampling()
    async with SamplingAhead(sampling, lambda step: step == 2) as ahead:
        for step in range(4):
            await ahead.sampled(step)
            await asyncio.sleep(0)
            assert sampling.begun == list(range(step + (2 if step == 1 else 1)))


async def test_what_failed_ahead_is_tried_again_in_its_turn() -> None:
    sampling = Sampling(failing=1)
    async with SamplingAhead(sampling, lambda step: True) as ahead:
        await ahead.sampled(0)
        await asyncio.sleep(0)
        with pytest.raises(InfraError):
            await ahead.sampled(1)
    assert sampling.begun == [0, 1, 1]


async def test_a_step_under_way_that_is_skipped_is_cancelled() -> None:
    sampling = Sampling(held=1)
    async with SamplingAhead(sampling, lambda step: step == 1) as ahead:
        await ahead.sampled(0)
        await asyncio.sleep(0)
        await ahead.sampled(5)
    assert (sampling.ended, sampling.cancelled) == ([0, 5], [1])
