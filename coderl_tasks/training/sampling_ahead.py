"""Sampling one step ahead: while a step is scored and trained, the next one is being sampled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

from coderl_tasks.errors import InfraError
from coderl_tasks.training.step import Phase

Sample = Callable[[int], Coroutine[Any, Any, Phase]]


class SamplingAhead:
    """Runs `sample`, which samples a step and retries what is retryable, for one step after the other.

    `may_begin` tells whether a step may be begun ahead of its turn. When the block ends, what is under way is
    cancelled; the groups that have arrived are recorded.
    """

    def __init__(self, sample: Sample, may_begin: Callable[[int], bool]) -> None:
        self._sample = sample
        self._may_begin = may_begin
        self._next: tuple[int, asyncio.Task[Phase]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cancel()

    async def sampled(self, step: int) -> Phase:
        """The sampled `step`; the step after it is then under way. Raises what sampling raised."""
        if self._next is None or self._next[0] != step:
            sampled = await self._sample(step)
        else:
            try:
                sampled = await self._next[1]
            except InfraError:  # a while ago: the service may be back
                sampled = await self._sample(step)
        await self._cancel()
        if self._may_begin(step + 1):
            self._next = step + 1, asyncio.create_task(self._sample(step + 1))
        return sampled

    async def _cancel(self) -> None:
        if self._next is not None:
            task, self._next = self._next[1], None
            task.cancel()
            # Until it has ended: no group may be recorded once the directory is no longer held.
            await asyncio.gather(task, return_exceptions=True)
