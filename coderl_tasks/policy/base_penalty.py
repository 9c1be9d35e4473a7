"""The penalty on leaving the base model: each token's advantage less what the policy gained on the base model there.

With d_t = sampler - base log-probability of a sampled token, whose mean estimates KL(policy || base), and coef the
penalty's weight, the advantage of a token is

    A_t = A + coef (mean(d) - d_t)          the mean over all completion tokens of the step that are trained on

Taken off the mean, the penalty moves probability between tokens and does not shift all advantages (as the Tinker
cookbook does it). The base model's log-probabilities are recorded with the scored rollouts: a replay asks for none.

Not covered: groups without a signal are skipped as ever, and not pulled back.
"""

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import tinker

from coderl_tasks.errors import DataError, InfraError
from coderl_tasks.policy.clients import tinker_errors
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.sampling import try_all


async def with_base_logprobs(base: tinker.SamplingClient, scored: pl.DataFrame, concurrency: int) -> pl.DataFrame:
    """`scored` (ROLLOUT_SCHEMA) with `base_logprobs` on the rows that are trained on; so many requests in flight.

    Raises InfraError if the service fails, or leaves out a token.
    """
    slots = asyncio.Semaphore(concurrency)

    async def of(row: tuple[list[int], list[int]]) -> list[float]:
        prompt, completion = row
        async with slots:
            with tinker_errors("computing the base model's log-probabilities"):
                scores = await base.compute_logprobs(tinker.ModelInput.from_ints([*prompt, *completion]))
        ours = [value for value in scores[len(prompt) :] if value is not None and math.isfinite(value)]
        if len(ours) != len(completion):
            raise InfraError("Tinker, computing the base model's log-probabilities: there is not one for each token")
        return ours

    asked = scored.filter("trained").select("prompt_tokens", "completion_tokens").rows()
    found = iter(await try_all(of, asked, "completions"))
    column = [next(found) if trained else None for trained in scored["trained"]]
    return scored.with_columns(pl.Series("base_logprobs", column, dtype=ROLLOUT_SCHEMA["base_logprobs"]))


def base_gaps(rows: pl.DataFrame) -> list[np.ndarray]:
    """Sampler less base log-probabilities of each completion's tokens, float64. Raises DataError where a row lacks
    the base model's."""
    if rows["base_logprobs"].has_nulls():
        raise DataError("rollouts to be trained on with kl_penalty_coef lack the base model's log-probabilities")
    pairs = rows.select("logprobs", "base_logprobs").iter_rows()
    return [np.asarray(ours, dtype=np.float64) - np.asarray(base, dtype=np.float64) for ours, base in pairs]


def mean_gap(gaps: Sequence[np.ndarray]) -> float:
    """The mean over all tokens, in nats per token."""
    return math.fsum(value for gap in gaps for value in gap) / sum(len(gap) for gap in gaps)


def penalised_advantages(rows: pl.DataFrame, coef: float) -> list[np.ndarray]:
    """The advantage of each token of each completion, float64, from rows that are trained on."""
    gaps = base_gaps(rows)
    mean = mean_gap(gaps) if gaps else 0.0
    return [advantage + coef * (mean - gap) for advantage, gap in zip(rows["advantage"], gaps, strict=True)]
