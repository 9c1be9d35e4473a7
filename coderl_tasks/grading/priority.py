"""The priority of a problem's tests: those first that most often catch wrong programs.

1. Two numbers are known of a test: how many programs ran it, and how many of them it was the first to catch.
2. Grading stops at the first failure, so a late test has few catches because few wrong programs reach it. What counts
   is therefore catches by times run, not catches.
3. Every test is taken to have let one program more pass than it did. A test that is never run stays behind those that
   have caught something; equals keep the problem's own order, and so do tests of which nothing is known.
4. Right programs count as runs that caught nothing. Without them the last of many tests would look perfect: whatever
   is wrong and gets that far fails there.

The priority decides what a wrong program costs and which of its failures is named, never its reward. It is learned
before a run and does not change in it, so that a verdict can be had again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatchCounts:
    """By test, in the problem's own order: how many programs ran it, and how many of them failed it."""

    runs: tuple[int, ...]
    catches: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.runs) != len(self.catches):
            raise ValueError(f"runs of {len(self.runs)} tests, catches of {len(self.catches)}")


def count_catches(
    n_tests: int, first_failures: Iterable[int | None], priority: Sequence[int] | None = None
) -> CatchCounts:
    """The counts of `n_tests` tests over programs graded by `priority` (None: the problem's own order), of which
    `first_failures` has the first failing test, None where all passed. What ran after it, if anything did, is not known
    and not counted. An index that `priority` does not hold is a ValueError."""
    indices = list(range(n_tests)) if priority is None else list(priority)
    runs, catches = [0] * n_tests, [0] * n_tests
    for failed in first_failures:
        for index in indices if failed is None else indices[: indices.index(failed) + 1]:
            runs[index] += 1
        if failed is not None:
            catches[failed] += 1
    return CatchCounts(tuple(runs), tuple(catches))


def learned_priority(counts: CatchCounts) -> list[int]:
    """The test indices by catches / (times run + 1), highest first; of equals the earlier comes first."""
    rates = [caught / (run + 1) for run, caught in zip(counts.runs, counts.catches, strict=True)]
    return sorted(range(len(rates)), key=lambda index: -rates[index])
