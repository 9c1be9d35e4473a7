"""The update of a step: scored rollouts -> datums -> one optimizer step -> what it did.

Which rollouts, in which order and with which numbers depends on the scored frame alone, so that a replay from the
recorded frame repeats the update.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import tinker

from coderl_tasks.policy.grpo import (
    TrainStepOutput,
    UpdateFailedError,
    UpdateRefusedError,
    finish_train_step,
    make_datum,
    submit_train_step,
)
from coderl_tasks.policy.rollout_frames import ORDER


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did. Without a datum no step was made, and `loss` and `kl_sample_train` are None.

    `loss` is the importance-sampling loss before the update, summed over completion tokens; `kl_sample_train` the mean
    over completion tokens of (sampler - trainer) log-probability before the update, in nats; `n_tokens` counts those
    tokens; `service_metrics` is what the service reported besides.
    """

    n_datums: int
    n_tokens: int
    loss: float | None
    kl_sample_train: float | None
    service_metrics: dict[str, float] = field(default_factory=dict)


def adam_params(
    learning_rate: float, *, beta1: float = 0.9, beta2: float = 0.95, eps: float = 1e-12
) -> tinker.AdamParams:
    """Adam without weight decay and without clipping."""
    return tinker.AdamParams(
        learning_rate=learning_rate, beta1=beta1, beta2=beta2, eps=eps, weight_decay=0.0, grad_clip_norm=0.0
    )


def trained_rollouts(scored: pl.DataFrame) -> pl.DataFrame:
    """The rows of `scored` (ROLLOUT_SCHEMA) that are trained on, in group and sample order."""
    return scored.filter(pl.col("trained")).sort(ORDER)


def build_datums(scored: pl.DataFrame) -> list[tinker.Datum]:
    """One datum for each row of `trained_rollouts(scored)`, in its order."""
    columns = ("prompt_tokens", "completion_tokens", "logprobs", "advantage")
    return [
        make_datum([*prompt, *completion], logprobs, len(prompt), advantage)
        for prompt, completion, logprobs, advantage in trained_rollouts(scored).select(columns).iter_rows()
    ]


async def update_policy(
    training_client: tinker.TrainingClient, scored: pl.DataFrame, adam: tinker.AdamParams
) -> UpdateResult:
    """Apply one optimizer step on the `trained` rows of `scored`; no step if there are none.

    It can be cancelled; the step may be applied all the same. Raises as `train_step` does, UpdateFailedError if the
    service answers without the log-probabilities, UpdateRefusedError if they are not finite: whatever is raised, the
    client must not be used again.
    """
    datums = build_datums(scored)
    if not datums:
        return _result(scored, datums, None)
    forward_backward, optim_step = submit_train_step(training_client, datums, adam)
    # Both, even if one fails: what forward_backward failed with is the cause, whichever comes back first.
    output, update = await asyncio.gather(forward_backward.coroutine(), optim_step.coroutine(), return_exceptions=True)
    return _result(scored, datums, finish_train_step(output, update))


def _result(scored: pl.DataFrame, datums: Sequence[tinker.Datum], output: TrainStepOutput | None) -> UpdateResult:
    if output is None:
        return UpdateResult(0, 0, None, None)
    answers = output.forward_backward.loss_fn_outputs
    if len(answers) != len(datums) or any("logprobs" not in answer for answer in answers):
        raise UpdateFailedError(f"the service answered {len(answers)} of {len(datums)} datums with log-probabilities")
    rows = trained_rollouts(scored)
    # In float64: both sides come in float32, too coarse to add up a step's tokens in.
    gap, loss, tokens = 0.0, 0.0, 0
    for answer, row in zip(answers, rows.iter_rows(named=True), strict=True):
        sampler = np.asarray(row["logprobs"], dtype=np.float64)
        trainer = answer["logprobs"].to_numpy().astype(np.float64).ravel()[len(row["prompt_tokens"]) - 1 :]
        if len(trainer) != len(sampler):
            raise UpdateFailedError(f"{len(trainer)} trainer log-probabilities for {len(sampler)} completion tokens")
        gap += float((sampler - trainer).sum())
        loss -= float(np.exp(trainer - sampler).sum()) * row["advantage"]
        tokens += len(sampler)
    # Not retryable: a replay repeats the update bit for bit, and would end here again.
    if not np.isfinite([loss, gap]).all():
        raise UpdateRefusedError(
            "training has diverged: the policy's log-probabilities are not finite (lower learning_rate and go on from "
            "an earlier checkpoint with init_from)"
        )
    metrics = {**output.forward_backward.metrics, **(output.optim_step.metrics or {})}
    return UpdateResult(len(datums), tokens, loss, gap / tokens, metrics)
