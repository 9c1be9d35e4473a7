"""Two evaluations compared on the problems graded in both: paired, so that the problems' own difficulty cancels out."""

from collections import Counter
from typing import Any

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.stats import Difference, paired_bootstrap, paired_proportion_difference


def paired_outcomes(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """A row a problem graded in both rollout frames: problem_id, split, before, after (the share that passed)."""
    return (
        _outcomes(before, "before")
        .join(_outcomes(after, "after"), on=["split", "problem_id"])
        .sort("split", "problem_id")
    )


def paired_difference(pairs: pl.DataFrame, *, seed: int = 0) -> Difference:
    """after minus before with its 95% interval: Newcombe's for one completion a problem, else the paired bootstrap.

    Raises DataError if there is no pair.
    """
    if pairs.is_empty():
        raise DataError("the two evaluations share no graded problem")
    before, after = pairs["before"].to_list(), pairs["after"].to_list()
    if not all(share in (0.0, 1.0) for share in before + after):
        return paired_bootstrap(before, after, seed=seed)
    cells = Counter(zip(before, after, strict=True))
    return paired_proportion_difference(cells[1.0, 1.0], cells[1.0, 0.0], cells[0.0, 1.0], cells[0.0, 0.0])


def compared(before: pl.DataFrame | None, after: pl.DataFrame, *, to: str) -> dict[str, Any]:
    """What a summary says of the comparison with the earlier evaluation `to`, whose rollouts are `before`.

    {compare: {to, difference, ci_low, ci_high}}; empty without `before`, or where no problem was graded in both.
    """
    pairs = None if before is None else paired_outcomes(before, after)
    if pairs is None or pairs.is_empty():
        return {}
    found = paired_difference(pairs)
    return {"compare": {"to": to, "difference": found.estimate, "ci_low": found.low, "ci_high": found.high}}


def _outcomes(rollouts: pl.DataFrame, name: str) -> pl.DataFrame:
    graded = rollouts.filter(pl.col("correctness_score").is_not_null())
    return graded.group_by("split", "problem_id").agg((pl.col("correctness_score") == 1.0).mean().alias(name))
