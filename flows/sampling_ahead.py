"""Sampling one step ahead: while a step is scored and trained, the next one is being sampled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

Sample = Callable[[int], Coroutine[Any, Any, None]]


class SamplingAhead:
    """Runs `sample`, which samples a step and retries what can be cured, for one step after the other.

    `last_step` is the last step that may be begun ahead: None for no end, -1 for none at all. When the block ends, what
    is under way is given up; the groups that have arrived are recorded.
    """

    def __init__(self, sample: Sample, last_step: int | None) -> None:
        self._sample = sample
        self._last_step = last_step
        self._next: tuple[int, asyncio.Task[None]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._next is not None:
            self._next[1].cancel()
            await asyncio.gather(self._next[1], return_exceptions=True)

    async def sampled(self, step: int) -> None:
        """Return when `step` is sampled; the step after it is then under way. Raises what sampling raised."""
        if self._next is not None and self._next[0] == step:
            await self._next[1]
        else:
            await self._sample(step)
        if self._last_step is None or step < self._last_step:
            self._next = step + 1, asyncio.create_task(self._sample(step + 1))
