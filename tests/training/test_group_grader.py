"""Each group is graded once, as soon as it is there, and afresh after it was forgotten."""

import asyncio

import polars as pl
import pytest

from coderl_tasks.errors import InfraError
from coderl_tasks.grading.scoring import ScoredCompletion
from coderl_tasks.training.group_grader import GroupGrader


def group(index: int, step: int = 0) -> pl.DataFrame:
    return pl.DataFrame({"step": [step], "group_index": [index], "completion": ["text"]})


class Scoring:
    """Notes what is graded; the first `failing` calls fail, and `holding` keeps all waiting."""

    def __init__(self, failing: int = 0, *, holding: bool = False) -> None:
        self.graded: list[tuple[int, int]] = []
        self.cancelled = 0
        self._failing = failing
        self._holding = holding

    async def __call__(self, frame: pl.DataFrame) -> list[ScoredCompletion]:
        self.graded.append((frame["step"][0], frame["group_index"][0]))
        if len(self.graded) <= self._failing:
            raise InfraError("no sandbox")
        try:
            await (asyncio.Event().wait() if self._holding else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return []


async def test_what_began_early_is_not_begun_again() -> None:
    scoring = Scoring()
    grader = GroupGrader(scoring)
    grader.start(group(1))
    assert await grader.grades(pl.concat([group(0), group(1)])) == {0: [], 1: []}
    assert sorted(scoring.graded) == [(0, 0), (0, 1)]


async def test_a_failure_comes_out_and_a_forgotten_step_is_graded_afresh() -> None:
    scoring = Scoring(failing=1)
    grader = GroupGrader(scoring)
    grader.start(group(0))
    with pytest.raises(InfraError):
        await grader.grades(group(0))
    await grader.forget(0)
    assert await grader.grades(group(0)) == {0: []}
    assert scoring.graded == [(0, 0), (0, 0)]


async def test_forgetting_ends_what_is_under_way_of_that_step_only() -> None:
    scoring = Scoring(holding=True)
    grader = GroupGrader(scoring)
    first, second = grader.start(group(0)), grader.start(group(0, step=1))
    await asyncio.sleep(0)
    await grader.forget(0)
    assert (first.cancelled(), second.done(), scoring.cancelled) == (True, False, 1)
    await grader.close()
    assert second.cancelled()
