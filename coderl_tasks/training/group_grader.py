"""Grades each group as soon as it is sampled, while others are still being sampled.

What is graded ahead is kept in memory only: grading is deterministic, so what a crash loses is graded again.
"""

import asyncio
from collections.abc import Awaitable, Callable

import polars as pl

from coderl_tasks.grading.scoring import ScoredCompletion

Grades = list[ScoredCompletion | None]
"""Of a group, in sample order; None for a sample that is left out."""
ScoreGroup = Callable[[pl.DataFrame], Awaitable[Grades]]
Key = tuple[int, int]
"""(step, group_index)"""


class GroupGrader:
    """Runs `score`, which grades one group (SAMPLED_SCHEMA), at most once a group until it is forgotten."""

    def __init__(self, score: ScoreGroup) -> None:
        self._score = score
        self._tasks: dict[Key, asyncio.Task[Grades]] = {}

    def start(self, group: pl.DataFrame) -> asyncio.Task[Grades]:
        """Begin to grade `group`, unless that has begun."""
        key = (group["step"][0], group["group_index"][0])
        if key not in self._tasks:
            self._tasks[key] = asyncio.ensure_future(self._score(group))
        return self._tasks[key]

    async def grades(self, sampled: pl.DataFrame) -> dict[int, Grades]:
        """The grades of a step's groups, by group_index; raises what grading raised."""
        groups = {group["group_index"][0]: group for group in sampled.partition_by("group_index", maintain_order=True)}
        graded = await asyncio.gather(*(self.start(group) for group in groups.values()))
        return dict(zip(groups, graded, strict=True))

    async def forget(self, step: int) -> None:
        """Give up what is under way of `step`, so that its groups can be graded afresh."""
        await self._end([key for key in self._tasks if key[0] == step])

    async def close(self) -> None:
        """Give up what is under way."""
        await self._end(list(self._tasks))

    async def _end(self, keys: list[Key]) -> None:
        tasks = [self._tasks.pop(key) for key in keys]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
