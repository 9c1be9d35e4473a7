"""Completions of a group that repeat each other token for token: how many there are, and how many chance explains.

A service that draws all samples of a request with one seed, or caches answers, hands out one completion many times:
such a group has no signal and says nothing. Short or nearly certain completions repeat by themselves, so the count
alone proves nothing. Of n - 1 independent draws at least one is the same as a completion of probability p, which its
log-probabilities give, with probability 1 - (1 - p)^(n - 1); summed over the group that is an unbiased estimate of how
many completions repeat another.

Not covered: log-probabilities at another temperature than the completions were sampled at. Below 1 they understate
how often independent draws repeat.
"""

import polars as pl

IMPROBABLE = 1e-6
"""A group of equal completions is called clones where independent draws would repeat its first one so rarely."""

REPEATED_MORE = 0.2
"""A step's `duplicate_rate` this much above what the probe found is warned of."""


def group_repeats(sampled: pl.DataFrame) -> pl.DataFrame:
    """One row per group of `sampled` (SAMPLED_SCHEMA), over its completions that have log-probabilities.

    `n` of them, `repeated` ones that another one equals, `expected` number of these for independent draws, and whether
    they are `clones`: all the same where that is improbable.
    """
    group = "group_index"
    text = pl.col("completion_tokens").cast(pl.List(pl.String())).list.join(" ")
    probability = pl.col("logprobs").cast(pl.List(pl.Float64())).list.sum().exp().clip(0.0, 1.0)
    known = sampled.filter(pl.col("logprobs").is_not_null()).select(group, text=text, p=probability)
    drawn = known.with_columns(n=pl.len().over(group), same=pl.len().over(group, "text"))
    others = pl.col("n").cast(pl.Float64()) - 1
    return (
        drawn.group_by(group)
        .agg(
            n=pl.len(),
            repeated=(pl.col("same") > 1).sum(),
            expected=(1 - (1 - pl.col("p")).pow(others)).sum(),
            clones=((pl.col("n") > 1) & (pl.col("same") == pl.col("n")) & (pl.col("p").pow(others) < IMPROBABLE)).all(),
        )
        .sort(group)
    )


def excess_rate(repeats: pl.DataFrame) -> float | None:
    """The share of the completions that repeat another beyond what chance explains (0 to 1); None without any.

    `repeats` is what `group_repeats` returns.
    """
    n, repeated, expected = repeats.select(pl.col("n", "repeated", "expected").sum()).row(0)
    return max(0.0, (repeated - expected) / n) if n else None
