"""Two evaluations compared on the problems graded in both: paired, so that the problems' own difficulty cancels out."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.stats import Difference, paired_bootstrap, paired_proportion_difference

SIDE_KEYS = ("policy", "step", "temperature", "max_tokens", "n")
"""What of an evaluation's summary says what was evaluated, and how."""
MOST_IN_COMMON = 0.9
"""Share of the smaller evaluation's problems below which the two are of other data; a few may not have been graded."""


def paired_outcomes(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """One row per problem graded in both rollout frames: problem_id, split, before, after (the share that passed)."""
    return (
        _outcomes(before, "before")
        .join(_outcomes(after, "after"), on=["split", "problem_id"])
        .sort("split", "problem_id")
    )


def paired_difference(pairs: pl.DataFrame, *, seed: int = 0) -> Difference:
    """after minus before with its 95% interval: Newcombe's for one completion per problem, else the paired bootstrap.

    Raises DataError if there is no pair.
    """
    if pairs.is_empty():
        raise DataError("the two evaluations share no graded problem")
    before, after = pairs["before"].to_list(), pairs["after"].to_list()
    # Shares of several completions fall into no cell of a table of four.
    if not all(share in (0.0, 1.0) for share in before + after):
        return paired_bootstrap(before, after, seed=seed)
    cells = Counter(zip(before, after, strict=True))
    return paired_proportion_difference(cells[1.0, 1.0], cells[1.0, 0.0], cells[0.0, 1.0], cells[0.0, 0.0])


def compared(
    before: pl.DataFrame | None, after: pl.DataFrame, *, to: str, sides: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> dict[str, Any]:
    """What a summary says of the comparison with the earlier evaluation `to`, whose rollouts are `before`; `sides` are
    the summaries of both.

    {compare: {to, difference, ci_low, ci_high, n, before, after}}: n problems were graded in both, and before and after
    have the SIDE_KEYS of each. Empty without `before`, or where no problem was graded in both.
    """
    pairs = None if before is None else paired_outcomes(before, after)
    if pairs is None or pairs.is_empty():
        return {}
    found = paired_difference(pairs)
    difference = {"to": to, "difference": found.estimate, "ci_low": found.low, "ci_high": found.high}
    one, other = ({key: side.get(key) for key in SIDE_KEYS} for side in sides)
    return {"compare": {**difference, "n": pairs.height, "before": one, "after": other}}


def side_text(side: Mapping[str, Any]) -> str:
    """What was evaluated and how, of a summary or of its SIDE_KEYS, in a line; what is not recorded is left out."""
    step = side.get("step")
    named = [str(side["policy"])] if side.get("policy") else []
    # -1 is the base model, but also a path of saved weights of which nothing else is known.
    if step is not None and step >= 0:
        named.append(f"step {step}")
    elif named and not named[0].startswith("tinker://"):
        named.append("not trained")
    settings = [f"{key} {side[key]:g}" for key in ("temperature", "max_tokens") if side.get(key) is not None]
    return ", ".join([*named, *settings, f"n={side['n']}"])


def unlike(before: Mapping[str, Any], after: Mapping[str, Any], n: int) -> str | None:
    """What besides the policies differs between two evaluations with `n` problems in common, by their summaries;
    None if nothing does. That one was made on some of the other's problems does not count: they are paired."""
    differing = [
        f"{key} {before[key]:g} against {after[key]:g}"
        for key in ("temperature", "max_tokens")
        if None not in (before.get(key), after.get(key)) and before[key] != after[key]
    ]
    if n < MOST_IN_COMMON * min(before["n"], after["n"]):
        differing.append(f"{n} problems in common of {before['n']} and {after['n']}")
    if not differing:
        return None
    return f"the evaluations are unlike in more than the policy: {'; '.join(differing)}"


def _outcomes(rollouts: pl.DataFrame, name: str) -> pl.DataFrame:
    # An infra error says nothing of the policy. The join of both sides then leaves the problem out of either.
    graded = rollouts.filter(pl.col("correctness_score").is_not_null())
    return graded.group_by("split", "problem_id").agg((pl.col("correctness_score") == 1.0).mean().alias(name))
