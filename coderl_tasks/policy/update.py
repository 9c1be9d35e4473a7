"""The update of a step: scored rollouts -> datums -> its optimizer steps -> what they did.

All depends on the scored frame, the method and a seed alone, so that a replay repeats the update. Epochs go over the
same rollouts: the sampler's log-probabilities stay those that were recorded, while the policy moves away from them.

The penalty on leaving the base model: each token's advantage less what the policy gained on the base model there. With
d_t = sampler - base log-probability of a sampled token, whose mean estimates KL(policy || base), and coef the penalty's
weight, the advantage of a token is

    A_t = A + coef (mean(d) - d_t)          the mean over all completion tokens of the step that are trained on

Taken off the mean, the penalty moves probability between tokens and does not shift all advantages (as the Tinker
cookbook does it). Groups without a signal are skipped as ever, and not pulled back. Without a penalty the same mean can
be an observation, of a sample of a step's completions (`observed`).

Both estimates of KL(policy || base) that are reported are means over tokens (J. Schulman, "Approximating KL
Divergence", http://joschu.net/blog/kl-approx.html). Neither is biased where the sampler is the policy:

    k1 = d_t                        may be negative, and with few tokens its mean too
    k3 = r - 1 - log r              never negative; r = exp(-d_t), the base model's probability over the sampler's
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.ma  # polars needs it for the first arrays, and would import it in the middle of a step
import polars as pl
import tinker

from coderl_tasks.errors import DataError, InfraError
from coderl_tasks.policy import grpo
from coderl_tasks.policy.clients import tinker_errors
from coderl_tasks.policy.rollout import ORDER, ROLLOUT_SCHEMA, TRAINER_SCHEMA
from coderl_tasks.policy.sampling import in_order, try_all
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.settings import TrainSettings
from coderl_tasks.settings.families import LossName

UPDATE_COLUMNS = (
    *ORDER, "prompt_tokens", "completion_tokens", "turns", "logprobs", "base_logprobs", "advantage", "turn_advantages",
    "trained",
)  # fmt: skip
KL_SAMPLE = 16
"""Completions of a step that the KL to the base model is observed on."""
GRAD_NORMS = ("unclipped_grad_l2:mean", "grad_norm", "skyrl.ai/grad_norm")
"""What services call the gradient's norm before clipping."""


@dataclass(frozen=True, slots=True)
class UpdateMethod:
    """How the rollouts of a step are trained on."""

    loss: grpo.PolicyLoss = field(default_factory=grpo.PolicyLoss)
    epochs: int = 1
    batch_size: int | None = None  # datums per optimizer step; None: all of them
    kl_penalty_coef: float = 0.0  # weight of the penalty on leaving the base model

    def record(self) -> dict[str, Any]:
        """This method for a commit, which a replay reads; empty for the plain one."""
        if self == UpdateMethod():
            return {}
        loss = {"loss_fn": self.loss.name, "loss_fn_config": dict(self.loss.config)}
        return loss | {name: getattr(self, name) for name in _RECORDED}

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Self:
        if not record:
            return cls()
        loss = grpo.PolicyLoss(record["loss_fn"], record["loss_fn_config"])
        # What is newer than the record had its default there.
        return cls(loss, **{name: record[name] for name in _RECORDED if name in record})

    @classmethod
    def of(cls, settings: TrainSettings) -> Self:
        """The method of a run with these settings."""
        return cls(
            loss=grpo.PolicyLoss(settings.loss_fn, settings.loss_config()),
            epochs=settings.epochs_per_rollout_batch,
            batch_size=settings.train_batch_size,
            kl_penalty_coef=settings.kl.penalty_coef,
        )

    def batches(self, n_datums: int, seed: int) -> Iterator[tuple[int, list[int]]]:
        """The epoch and the indices of the datums of each optimizer step, in order. `seed` draws each epoch's order,
        but where one step takes all."""
        size = self.batch_size or n_datums
        for epoch in range(self.epochs):
            order = list(range(n_datums))
            if size < n_datums:
                # By hashes, which no library can change: a later version replays the same batches.
                order.sort(key=partial(seed_for, seed, epoch))
            for start in range(0, n_datums, size):
                yield epoch, order[start : start + size]


_RECORDED = [each.name for each in fields(UpdateMethod) if each.name != "loss"]


@dataclass(slots=True)
class OptimizerStep:
    """What one optimizer step was made on, as the policy was before it: sums over its completion tokens."""

    epoch: int
    n_datums: int
    n_tokens: int = 0
    loss: float = 0.0
    gap: float = 0.0  # of (sampler - trainer) log-probability
    ratio_sum: float = 0.0  # of the importance ratios as the loss takes them
    ratio_max: float = 0.0
    clipped: int | None = None  # tokens that the loss cuts at a threshold; None: it has none
    service_metrics: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None  # before clipping; None: the service does not say

    def row(self) -> dict[str, Any]:
        """This optimizer step in the journal: means over its tokens."""
        return {
            "epoch": self.epoch,
            "n_datums": self.n_datums,
            "n_tokens": self.n_tokens,
            "loss": self.loss,
            "kl_sample_train": self.gap / self.n_tokens,
            "ratio_mean": self.ratio_sum / self.n_tokens,
            "ratio_max": self.ratio_max,
            "clipped_share": None if self.clipped is None else self.clipped / self.n_tokens,
            "grad_norm": self.grad_norm,
        }


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What the update of a step did. From `loss` on of the policy before each optimizer step, None where there was no
    step, and over all its steps as in OptimizerStep."""

    n_datums: int = 0  # trained on, once, however many epochs went over them; as n_tokens
    n_tokens: int = 0
    steps: tuple[OptimizerStep, ...] = ()
    kl_base: tuple[float, float] | None = None  # as `kl_to_base`
    loss: float | None = None  # summed over the completion tokens of an epoch; the epochs' mean
    kl_sample_train: float | None = None  # nats: mean over tokens of (sampler - trainer) log-probability
    ratio_mean: float | None = None
    ratio_max: float | None = None
    clipped_share: float | None = None  # of the tokens, 0 to 1
    grad_norm: float | None = None  # the greatest
    # Of the rollouts trained on (TRAINER_SCHEMA without `step`).
    trainer_logprobs: pl.DataFrame | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedSequence:
    """A sequence that is trained on: `prompt_len` tokens of prompt, then the tokens `first` to `last` of a completion,
    and replies. `sampled` (one per token after the prompt) marks those that the policy sampled."""

    prompt_len: int
    sampled: np.ndarray
    first: int
    last: int

    def spread(self, values: np.ndarray) -> np.ndarray:
        """`values` of the completion's tokens as values of this sequence's after its prompt, 0 where not sampled."""
        own = values[self.first : self.last]
        if len(own) != self.last - self.first:  # numpy would spread a single value over all tokens
            raise ValueError(f"{len(own)} values for {self.last - self.first} completion tokens")
        spread = np.zeros(len(self.sampled), dtype=values.dtype)
        spread[self.sampled] = own
        return spread


def sequences(rows: pl.DataFrame, row: int) -> Iterator[tuple[np.ndarray, TrainedSequence]]:
    """Yields the sequences that the completion in a row of `rows` is trained as, each with its tokens, prompt included.
    All its turns are one, in which the environment's replies have no advantage and no loss. But a turn whose prompt
    does not start with all tokens so far (`is_split`) begins another one: each trained token stands behind exactly the
    tokens that it was sampled behind."""
    prompt, completion = rows["prompt_tokens"][row].to_numpy(), rows["completion_tokens"][row].to_numpy()
    only_turn = {"environment_tokens": [], "is_split": False, "n_tokens": len(completion)}
    turns = [only_turn] if rows["turns"][row] is None else rows["turns"][row].to_list()
    tokens, prompt_len, is_sampled = prompt, len(prompt), [np.zeros(0, dtype=bool)]
    first = n_taken = 0  # of the completion's tokens: the first in this sequence, and how many are in one so far
    for turn in turns:
        # Empty before the first answer. After a split also what the format has rewritten.
        reply = np.asarray(turn["environment_tokens"], dtype=prompt.dtype)
        if turn["is_split"]:
            yield tokens, TrainedSequence(prompt_len, np.concatenate(is_sampled), first, last=n_taken)
            # Its prompt shares only the first `kept` tokens with what came before.
            tokens = np.concatenate([tokens[: turn["kept"]], reply])
            prompt_len, first, is_sampled = len(tokens), n_taken, [np.zeros(0, dtype=bool)]
        else:
            tokens = np.concatenate([tokens, reply])
            is_sampled.append(np.zeros(len(reply), dtype=bool))
        answer = completion[n_taken : n_taken + turn["n_tokens"]]
        tokens, n_taken = np.concatenate([tokens, answer]), n_taken + len(answer)
        is_sampled.append(np.ones(len(answer), dtype=bool))
    yield tokens, TrainedSequence(prompt_len, np.concatenate(is_sampled), first, last=n_taken)


DatumSource = tuple[int, TrainedSequence]
"""The row that a datum was made of, and the sequence of this row that it is."""


def adam_params(learning_rate: float) -> tinker.AdamParams:
    """The recipe's Adam, without weight decay and without clipping (0)."""
    decays = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
    return tinker.AdamParams(learning_rate=learning_rate, grad_clip_norm=0.0, **decays)


def observed(scored: pl.DataFrame, seed: int) -> pl.Series:
    """Which rows of `scored` the KL to the base model is observed on (true per row): KL_SAMPLE drawn by `seed` from
    those with log-probabilities, or all of them. No group has two more than another that has further ones."""
    has_some = scored.select(pl.col("logprobs").list.len().fill_null(0) > 0).to_series().arg_true().to_list()
    # By hashes, as batches are drawn; by group and sample, since the frame's order may be another one after a kill.
    keys = scored.select("group_index", "sample_index").rows()
    shuffled = sorted(has_some, key=lambda row: seed_for(seed, *keys[row]))
    earlier: Counter[int] = Counter()  # by group: its completions that come before
    ranks: dict[int, int] = {}
    for row in shuffled:
        ranks[row] = earlier[keys[row][0]]
        earlier[keys[row][0]] += 1
    drawn = set(sorted(shuffled, key=ranks.__getitem__)[:KL_SAMPLE])  # stable: first one of each group, by hash
    return pl.Series([row in drawn for row in range(scored.height)], dtype=pl.Boolean)


async def with_base_logprobs(
    base: tinker.SamplingClient, scored: pl.DataFrame, concurrency: int, which: pl.Series
) -> pl.DataFrame:
    """Adds `base_logprobs` to the rows of `scored` (ROLLOUT_SCHEMA) where `which` is true, by up to `concurrency`
    concurrent requests. Raises InfraError if the service fails or leaves out a token."""
    slots = asyncio.Semaphore(concurrency)

    async def logprobs_of(row: int) -> pl.Series:
        """The base model's log-probability of each completion token of a row, whose turns may be several sequences."""
        base_logprobs: list[float] = []
        for tokens, sequence in sequences(scored, row):
            async with slots:
                with tinker_errors("computing the base model's log-probabilities"):
                    scores = await base.compute_logprobs(tinker.ModelInput.from_ints(tokens.tolist()))
            after_prompt = np.array([math.nan if score is None else score for score in scores[sequence.prompt_len :]])
            # Whatever the service left out is missing from the count below, which raises then.
            if len(after_prompt) == len(tokens) - sequence.prompt_len:
                of_sampled = after_prompt[sequence.sampled]
                base_logprobs += of_sampled[np.isfinite(of_sampled)].tolist()
        if len(base_logprobs) != len(scored["completion_tokens"][row]):
            raise InfraError("Tinker, computing the base model's log-probabilities: there is not one for each token")
        return pl.Series(base_logprobs, dtype=pl.Float32)

    computed = iter(await try_all(logprobs_of, which.arg_true().to_list(), what="completions"))
    column = [next(computed) if is_asked else None for is_asked in which]
    return scored.with_columns(pl.Series("base_logprobs", column, dtype=ROLLOUT_SCHEMA["base_logprobs"]))


def trained_rollouts(scored: pl.DataFrame) -> pl.DataFrame:
    """The rows of `scored` that are trained on, in group and sample order, with the columns that an update reads."""
    rows = scored.select(UPDATE_COLUMNS)
    # Without a copy where all are: of long completions that is hundreds of megabytes.
    return in_order([rows if rows["trained"].all() else rows.filter("trained")], rows.schema)


def kl_to_base(scored: pl.DataFrame) -> tuple[float, float] | None:
    """KL(policy || base) by k1 and k3, in nats, over the tokens with the base model's log-probabilities; None without
    any."""
    known = scored.select("logprobs", "base_logprobs").filter(pl.col("base_logprobs").is_not_null())
    if not known.height:
        return None
    gaps, k1 = _gaps(known)
    # expm1: close to the base model exp(-d) - 1 would be rounding alone. Up to e^80, so that the sum stays finite if a
    # service says such a number: no sampler draws a token of probability e^-80.
    terms = (value for gap in gaps for value in np.expm1(np.minimum(-gap, 80.0)) + gap)
    return k1, math.fsum(terms) / max(1, sum(map(len, gaps)))


def penalised_advantages(rows: pl.DataFrame, coef: float) -> list[grpo.Advantage]:
    """The advantage of each token of each completion (float64). DataError where a row lacks `base_logprobs`."""
    if rows["base_logprobs"].has_nulls():
        raise DataError("rollouts to be trained on with kl_penalty_coef lack the base model's log-probabilities")
    gaps, mean = _gaps(rows)
    return [advantage + coef * (mean - gap) for advantage, gap in zip(token_advantages(rows), gaps, strict=True)]


def _gaps(rows: pl.DataFrame) -> tuple[list[np.ndarray], float]:
    """Sampler less base log-probability of each completion's tokens, float64, and the mean over all (0 without any)."""
    pairs = zip(rows["logprobs"], rows["base_logprobs"], strict=True)
    gaps = [ours.to_numpy().astype(np.float64) - base.to_numpy().astype(np.float64) for ours, base in pairs]
    return gaps, math.fsum(value for gap in gaps for value in gap) / sum(map(len, gaps)) if gaps else 0.0


def token_advantages(rows: pl.DataFrame) -> list[grpo.Advantage]:
    """The advantage of each of `rows`: one, or where its turns have different ones, one per token."""
    columns = rows.select("advantage", "turn_advantages", "turns").iter_rows()
    return [
        advantage if by_turn is None else np.repeat(by_turn, [turn["n_tokens"] for turn in answers])
        for advantage, by_turn, answers in columns
    ]


def build_datums(
    rows: pl.DataFrame, advantages: Sequence[grpo.Advantage], loss_fn: LossName = grpo.LOSS_FN
) -> tuple[list[tinker.Datum], list[DatumSource]]:
    """Returns the datum of each sequence of `trained_rollouts`, and its source; `advantages` are by row. An answer of
    no tokens has no datum."""
    datums, sources = [], []
    for row in range(rows.height):
        # Arrays, and of one row at a time: as Python's numbers a step's tokens would be ten times as large.
        for tokens, sequence in sequences(rows, row):
            if sequence.last == sequence.first:
                continue
            logprobs, advantage = rows["logprobs"][row].to_numpy(), advantages[row]
            advantage = sequence.spread(np.broadcast_to(advantage, logprobs.shape))
            values = tokens, sequence.spread(logprobs), sequence.prompt_len, advantage, loss_fn
            datums.append(grpo.array_datum(*values, sampled=sequence.sampled))
            sources.append((row, sequence))
    return datums, sources


async def update_policy(
    training_client: tinker.TrainingClient,
    scored: pl.DataFrame,
    adam: tinker.AdamParams,
    method: UpdateMethod | None = None,
    seed: int = 0,
) -> UpdateResult:
    """Trains on the `trained` rows of `scored`, if any, as `method` says (default: one optimizer step on all of them).
    `seed` draws the batches. After an error or a cancellation do not use the client: steps may have been applied.
    Raises UpdateFailedError for a failure or missing log-probabilities, UpdateRefusedError for a refusal or NaN."""
    method = method or UpdateMethod()
    rows = trained_rollouts(scored)
    # Computed once: the datums and the reported loss must use the same numbers.
    coef = method.kl_penalty_coef
    advantages = penalised_advantages(rows, coef) if coef else token_advantages(rows)
    datums, sources = build_datums(rows, advantages, method.loss.name)
    kl_base = kl_to_base(scored)
    if not datums:
        return UpdateResult(kl_base=kl_base)
    if grpo.LOSS_RULES[method.loss.name].reads_prompt:
        datums = await _with_prompt_logprobs(training_client, datums, [sequence for _, sequence in sources])
    steps: list[OptimizerStep] = []
    # By row, per completion token: the trainer's log-probabilities of the first epoch, filled in by `_summed_up`.
    trainer_logprobs = [np.full(len(sampler), np.nan, np.float32) for sampler in rows["logprobs"]]
    # One optimizer step at a time: its answer shows whether the policy has diverged, which ends the update.
    for epoch, batch in method.batches(len(datums), seed):
        chosen = [datums[index] for index in batch]
        forward_backward, optim_step = grpo.submit_train_step(training_client, chosen, adam, method.loss)
        # Await both even if one fails: forward_backward's error, which cancels optim_step, is the cause.
        answers = await asyncio.gather(forward_backward.coroutine(), optim_step.coroutine(), return_exceptions=True)
        output = grpo.finish_train_step(*answers)
        trained_on = [sources[index] for index in batch]
        steps.append(_summed_up(output, trained_on, rows, advantages, method.loss, epoch, trainer_logprobs))
    n_tokens_of_all_epochs = sum(step.n_tokens for step in steps)
    clipped = [step.clipped for step in steps if step.clipped is not None]
    return UpdateResult(
        n_datums=len(datums),
        n_tokens=sum(step.n_tokens for step in steps if step.epoch == 0),
        steps=tuple(steps),
        kl_base=kl_base,
        loss=math.fsum(step.loss for step in steps) / method.epochs,
        kl_sample_train=math.fsum(step.gap for step in steps) / n_tokens_of_all_epochs,
        ratio_mean=math.fsum(step.ratio_sum for step in steps) / n_tokens_of_all_epochs,
        ratio_max=max(step.ratio_max for step in steps),
        clipped_share=math.fsum(clipped) / n_tokens_of_all_epochs if clipped else None,
        grad_norm=max((step.grad_norm for step in steps if step.grad_norm is not None), default=None),
        trainer_logprobs=rows.select(
            *ORDER, pl.Series("trainer_logprobs", trainer_logprobs, dtype=TRAINER_SCHEMA["trainer_logprobs"])
        ),
    )


async def _with_prompt_logprobs(
    client: tinker.TrainingClient, datums: list[tinker.Datum], trained_sequences: list[TrainedSequence]
) -> list[tinker.Datum]:
    """The datums with log-probabilities of the tokens that no sampler gave too: prompts and replies."""
    # The policy's own of before the update: what no sampler gave is then no distance from it. A replay, which starts
    # from the same policy, gets the same.
    with tinker_errors("computing the prompts' log-probabilities"):
        output = await client.forward(datums, loss_fn=grpo.LOSS_FN)
    _require_logprobs(output.loss_fn_outputs, len(datums))
    completed = []
    for datum, sequence, answer in zip(datums, trained_sequences, output.loss_fn_outputs, strict=True):
        sampler = datum.loss_fn_inputs["logprobs"].to_numpy().copy()
        is_given = np.arange(len(sampler)) < sequence.prompt_len - 1
        is_given[sequence.prompt_len - 1 :] = ~sequence.sampled
        sampler[is_given] = answer["logprobs"].to_numpy().ravel()[is_given]
        inputs = datum.loss_fn_inputs | {"logprobs": tinker.TensorData.from_numpy(sampler)}
        completed.append(tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs))
    return completed


def _require_logprobs(answers: Sequence[Mapping[str, Any]], datums: int) -> None:
    if len(answers) != datums or any("logprobs" not in answer for answer in answers):
        raise grpo.UpdateFailedError(f"the service answered {len(answers)} of {datums} datums with log-probabilities")


def _summed_up(
    output: grpo.TrainStepOutput,
    trained_on: Sequence[DatumSource],
    rows: pl.DataFrame,
    advantages: Sequence[grpo.Advantage],
    loss: grpo.PolicyLoss,
    epoch: int,
    trainer_logprobs: list[np.ndarray],
) -> OptimizerStep:
    """Sums up one optimizer step over its completion tokens. `trained_on` has the source of each datum. In epoch 0 the
    trainer's log-probabilities are written into `trainer_logprobs`, by row. Raises UpdateFailedError if
    log-probabilities are missing, UpdateRefusedError if training has diverged."""
    answers, loss_of_completion = output.forward_backward.loss_fn_outputs, grpo.LOSS_RULES[loss.name].value
    _require_logprobs(answers, len(trained_on))
    metrics = {**output.forward_backward.metrics, **(output.optim_step.metrics or {})}
    grad_norm = next((metrics[name] for name in GRAD_NORMS if name in metrics), None)
    step = OptimizerStep(epoch, n_datums=len(trained_on), service_metrics=metrics, grad_norm=grad_norm)
    for answer, (row, sequence) in zip(answers, trained_on, strict=True):
        # One log-probability per target, and target i is token i + 1.
        after_prompt = answer["logprobs"].to_numpy().ravel()[sequence.prompt_len - 1 :]
        own = slice(sequence.first, sequence.last)  # of the row's sampled tokens, those in this sequence
        n, n_after_prompt = len(after_prompt), len(sequence.sampled)
        if n != n_after_prompt:  # the service left out some
            raise grpo.UpdateFailedError(f"{n} trainer log-probabilities for {n_after_prompt} completion tokens")
        of_sampled = after_prompt[sequence.sampled]  # not of the environment's replies
        if epoch == 0:
            trainer_logprobs[row][own] = of_sampled
        # Sum in float64: both sides come in float32, too coarse for a sum over a step's tokens.
        sampler, trainer = rows["logprobs"][row].to_numpy().astype(np.float64)[own], of_sampled.astype(np.float64)
        advantage = advantages[row]
        own_advantage = advantage[own] if isinstance(advantage, np.ndarray) else advantage
        loss_value, ratios, n_clipped = loss_of_completion(trainer, sampler, own_advantage, loss.config)
        step.n_tokens += len(sampler)
        step.loss += loss_value
        step.gap += float((sampler - trainer).sum())
        step.ratio_sum += float(ratios.sum())
        step.ratio_max = max(step.ratio_max, float(ratios.max()))
        if n_clipped is not None:  # None: the loss has no threshold
            step.clipped = (step.clipped or 0) + n_clipped
    # Not retryable (Refused, not Failed): a replay repeats the update bit for bit, and would end here again.
    if not np.isfinite([step.loss, step.gap]).all():
        raise grpo.UpdateRefusedError(
            "training has diverged: the policy's log-probabilities are not finite (lower learning_rate and go on from "
            "an earlier checkpoint with init_from)"
        )
    return step
