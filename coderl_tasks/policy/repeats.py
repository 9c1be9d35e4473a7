"""Completions of a group that repeat each other token for token: how many there are, and how many chance explains.

A service that draws all samples of a request with one seed, or caches answers, hands out one completion many times:
such a group has no signal and says nothing. Short or nearly certain completions repeat by themselves, so the count
alone proves nothing. Of n - 1 independent draws at least one is the same as a completion of probability p, which its
log-probabilities give, with probability 1 - (1 - p)^(n - 1); summed over the group that is an unbiased estimate of how
many completions repeat another.

Not covered: log-probabilities at another temperature than the completions were sampled at. Below 1 they understate
how often independent draws repeat.
"""

import math
from collections import Counter

import polars as pl

IMPROBABLE = 1e-6
"""A group of equal completions is called clones where independent draws would repeat its first one so rarely."""

REPEATED_MORE = 0.2
"""A step's `duplicate_rate` this much above what the probe found is warned of."""

REPEATS_SCHEMA = {
    "group_index": pl.Int32(),
    "n": pl.Int32(),
    "repeated": pl.Int32(),
    "expected": pl.Float64(),
    "clones": pl.Boolean(),
}


def group_repeats(sampled: pl.DataFrame) -> pl.DataFrame:
    """One row per group of `sampled` (SAMPLED_SCHEMA), over its completions that have log-probabilities.

    `n` of them, `repeated` ones that another one equals, `expected` number of these for independent draws, and whether
    they are `clones`: all the same where that is improbable.
    """
    columns = ("group_index", "completion_tokens", "logprobs")
    known = sampled.filter(pl.col("logprobs").is_not_null()).select(columns).sort("group_index", maintain_order=True)
    rows = [_repeats(*group) for group in known.group_by("group_index", maintain_order=True).all().iter_rows()]
    return pl.DataFrame(rows, schema=REPEATS_SCHEMA, orient="row")


def _repeats(index: int, texts: list[list[int]], logprobs: list[list[float]]) -> tuple[int, int, int, float, bool]:
    # With exact sums: those of polars have other last bits where a frame lies in memory in other pieces, and a run
    # that was killed would commit another rate than one that was not.
    probabilities = [min(1.0, math.exp(math.fsum(each))) for each in logprobs]
    times, others = Counter(map(tuple, texts)), len(texts) - 1
    repeated = sum(count for count in times.values() if count > 1)
    expected = math.fsum(1 - (1 - p) ** others for p in probabilities)
    # The same tokens can come with other log-probabilities: improbable is what all of them say.
    clones = others > 0 and len(times) == 1 and all(p**others < IMPROBABLE for p in probabilities)
    return index, len(texts), repeated, expected, clones


def excess_rate(repeats: pl.DataFrame) -> float | None:
    """The share of the completions that repeat another beyond what chance explains (0 to 1); None without any.

    `repeats` is what `group_repeats` returns.
    """
    n, repeated = (int(repeats[column].sum()) for column in ("n", "repeated"))
    return max(0.0, (repeated - math.fsum(repeats["expected"])) / n) if n else None
