"""The priority of a problem's tests: those first that most often catch wrong programs.

Grading stops at the first failure, so few wrong programs reach a late test: what counts is catches per time run, right
programs included, as without them the last of many tests would look perfect. One run without a catch is added to each
test, so one that never ran comes after those that have caught something.

The priority decides what a wrong program costs and which of its failures is named, never its reward. It is learned
before a run and does not change in it, so that a verdict can be had again.
"""

from collections.abc import Iterable, Sequence


def count_catches(n_tests: int, first_failures: Iterable[int | None]) -> tuple[list[int], list[int]]:
    """By test, in the problem's own order: how many programs ran it, and how many of them it was the first to catch.
    `first_failures` has, for each program, the first of `n_tests` tests that it fails, None if it passes all. What ran
    after that test, if anything did, is not known and not counted."""
    runs, catches = [0] * n_tests, [0] * n_tests
    for failed in first_failures:
        for index in range(n_tests if failed is None else failed + 1):
            runs[index] += 1
        if failed is not None:
            catches[failed] += 1
    return runs, catches


def learned_priority(runs: Sequence[int], catches: Sequence[int]) -> list[int]:
    """The test indices by catches / (times run + 1), highest first; of equals the earlier comes first. Raises
    ValueError if the two counts are of different numbers of tests."""
    rates = [caught / (run + 1) for run, caught in zip(runs, catches, strict=True)]
    return sorted(range(len(rates)), key=lambda index: -rates[index])
