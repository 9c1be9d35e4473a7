"""Group-relative policy optimisation: from the rewards of a group to one optimizer step.

**What each completion is reinforced with.**

1. Which rewards a group is compared by (`counted_rewards`): what a completion that ran into its limit counts for. That
   is its reward as it is (`as_graded`), nothing (`masked`), or less the longer it is (`penalised`).
2. Whether they differ (`should_skip`): a group whose rewards are equal has no signal and is left out.
3. How far each is off (`ESTIMATORS`). The column `reward` stays as it was graded.

**The loss.** Losses are sums over completion tokens. With l the trainer's log-probability of a token, q the sampler's,
A the completion's advantage and r = exp(l - q) the importance ratio, each function of LOSS_RULES has its formula. The
service computes gradients. The value is worked out here in float64 from the log-probabilities that it returns, since
services add up theirs in their own ways. Thresholds are always sent: defaults are the service's too.

Not covered: stable_reinforce, whose sampler's records end with the session: a lost update could not be replayed.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np
import polars as pl
import tinker

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.policy.clients import describe, is_fatal
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.policy.sampling import completion_budget, split_groups
from coderl_tasks.policy.turn_credit import TurnCredit, with_turn_advantages
from coderl_tasks.settings.families import LossName, Truncation

CountedRewards = Callable[[pl.DataFrame], list[float | None]]
"""The rewards that a graded group (ROLLOUT_SCHEMA) is compared by, None where a completion has none."""
OVERLONG_SHARE = 5
"""The penalty begins in the last of so many parts of the limit, where no length is given (DAPO: 4,096 of 20,480)."""
# Not 0: the mean of equal rewards is rounded, so that they may deviate from it by a little.
NO_SIGNAL = 1e-8
MIN_GRADABLE = 2
"""A group with fewer graded members has no mean to deviate from."""
EPS = 1e-6
Estimator = Callable[[list[float]], list[float]]
"""The advantages of a group from its gradable rewards (G,), at least two of them, which are not all equal."""


def compute_advantages(rewards: list[float]) -> list[float]:
    """A_i = r_i - mean(r): the deviation of each reward from the mean of its group.
    It is not divided by the group's standard deviation, which would give nearly solved and nearly hopeless problems
    more weight (Liu et al., "Understanding R1-Zero-Like Training")."""
    if not rewards:
        return []
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def std_normalised(rewards: list[float], eps: float = EPS) -> list[float]:
    """A_i = (r_i - mean(r)) / (std(r) + eps), std with ddof 1 as torch.std: GRPO as first published (Shao et al.,
    "DeepSeekMath"). Every group that is trained on then pulls about equally hard, however little its rewards differ."""
    deviations = compute_advantages(rewards)
    std = math.sqrt(math.fsum(deviation**2 for deviation in deviations) / (len(rewards) - 1))
    return [deviation / (std + eps) for deviation in deviations]


def leave_one_out(rewards: list[float]) -> list[float]:
    """A_i = r_i - mean of r_j over j != i: RLOO (Ahmadian et al., "Back to Basics"). It is the mean-centred advantage
    times G / (G - 1): the same directions, without bias, with more weight for small groups."""
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def maxrl(rewards: list[float]) -> list[float]:
    """A_i = (r_i - mean(r)) / mean(r): MaxRL (Tajwar et al., "Maximum Likelihood Reinforcement Learning").
    With rewards of 0 and 1 a group's gradient then estimates that of the log pass rate: hard problems weigh more.
    Raises ConfigError for a reward below 0: the mean may then have either sign."""
    if min(rewards) < 0:
        raise ConfigError(
            f"advantage=maxrl divides by a group's mean reward, and there is one of {min(rewards):g}: it needs rewards "
            "that are not negative (of code: format_coef=0), or another advantage"
        )
    # No epsilon: a mean of G such rewards is at least the greatest of them / G, so that no advantage exceeds G - 1.
    mean = sum(rewards) / len(rewards)
    return [deviation / mean for deviation in compute_advantages(rewards)]


QUANTITIES: dict[str, tuple[str, str, Callable[[float, Sequence[float]], float]]] = {
    "reward": ("reward", "reward", lambda own, rewards: own),
    "mean": ("the group's mean", "avg(reward) OVER ()", lambda own, rewards: sum(rewards) / len(rewards)),
    "std": ("its standard deviation", "stddev(reward) OVER ()", lambda own, rewards: statistics.stdev(rewards)),
    "others": (
        "the mean of the others' rewards",
        "(sum(reward) OVER () - reward) / (count(reward) OVER () - 1)",
        lambda own, rewards: (sum(rewards) - own) / (len(rewards) - 1),
    ),
}
"""What a rule may name: in words, as SQL over the rows of the group, and its value for a reward among its group's."""


@dataclass(frozen=True, slots=True)
class AdvantageRule:
    """An estimator, and its `rule`: the formula of an advantage in QUANTITIES and {eps}, which `estimate` then takes.
    With "-" for the minus sign "−" it must be valid DuckDB SQL: the viewer shows it as words, numbers and SQL.

    For rewards in [0, 1] a group's mean |advantage| must be at most 2: `insight/warning_signs.py` judges losses by it.
    """

    estimate: Callable[..., list[float]]
    rule: str

    @property
    def in_words(self) -> str:
        return self.rule.format(eps="eps", **{name: words for name, (words, _, _) in QUANTITIES.items()})

    def as_sql(self, eps: float) -> str:
        return self.rule.replace("−", "-").format(eps=eps, **{name: sql for name, (_, sql, _) in QUANTITIES.items()})

    def with_numbers(self, own: float, rewards: Sequence[float], eps: float) -> str:
        """The rule for a completion's reward among its group's, at least two that are not all equal."""
        values = {name: f"{value(own, rewards):.4g}" for name, (_, _, value) in QUANTITIES.items()}
        return self.rule.format(eps=eps, **values | {"reward": f"{own:g}"})


ESTIMATORS = {
    "mean_centred": AdvantageRule(compute_advantages, "{reward} − {mean}"),
    "std_normalised": AdvantageRule(std_normalised, "({reward} − {mean}) / ({std} + {eps})"),
    "leave_one_out": AdvantageRule(leave_one_out, "{reward} − {others}"),
    "maxrl": AdvantageRule(maxrl, "({reward} − {mean}) / {mean}"),
}
"""By the value of the setting `advantage`."""


def estimator(name: str, eps: float) -> Estimator:
    """The estimator of this name, with `eps` if it takes one."""
    estimate = ESTIMATORS[name].estimate
    return partial(estimate, eps=eps) if "{eps}" in ESTIMATORS[name].rule else estimate


def as_graded(group: pl.DataFrame) -> list[float | None]:
    return list(group["reward"])


def masked(group: pl.DataFrame) -> list[float | None]:
    """The rewards of the group, None for completions that were cut off: neither trained on nor in its mean."""
    rows = group.select("reward", "stop_reason").iter_rows()
    return [None if stop_reason == TRUNCATED else reward for reward, stop_reason in rows]


def penalised(
    group: pl.DataFrame,
    *,
    max_tokens: int,
    context: int,
    overlong_tokens: int | None,
    max_trajectory_tokens: int | None = None,
) -> list[float | None]:
    """The rewards of the group less its completions' penalties, which grow from 0 to 1 over the last `overlong_tokens`
    (None: a fifth) before a completion's limit (Yu et al., "DAPO", soft overlong punishment). `max_tokens` is the limit
    of all where the `context`, and in several turns `max_trajectory_tokens`, leave as much."""
    counted: list[float | None] = []
    rows = group.select("reward", pl.col("prompt_tokens", "completion_tokens").list.len(), "turns").iter_rows()
    for reward, prompt, completion, turns in rows:
        if reward is None:
            counted.append(None)
            continue
        left = math.inf
        if turns is not None:  # the limit is that of each answer: here the last one's
            sampled, completion = completion, turns[-1]["n_tokens"]
            prompt = turns[-1]["kept"] + len(turns[-1]["environment_tokens"])
            if max_trajectory_tokens is not None:
                replies = sum(len(turn["environment_tokens"]) for turn in turns)
                left = max_trajectory_tokens - (sampled - completion) - replies
        limit = int(min(completion_budget(prompt, max_tokens, context), left))
        # Of a limit that the context cuts short the same length may be all there is.
        overlong = max(1, min(limit, overlong_tokens or limit // OVERLONG_SHARE))
        counted.append(reward - min(1.0, max(0, completion - (limit - overlong)) / overlong))
    return counted


def counted_rewards(
    truncation: Truncation, max_tokens: int, context: int, max_trajectory_tokens: int | None = None
) -> CountedRewards:
    """The rule that the setting names, with the limits that `penalised` needs."""
    with_limits = partial(
        penalised,
        max_tokens=max_tokens,
        context=context,
        overlong_tokens=truncation.overlong_tokens,
        max_trajectory_tokens=max_trajectory_tokens,
    )
    rules: dict[str, CountedRewards] = {"graded": as_graded, "masked": masked, "penalised": with_limits}
    return rules[truncation.kind]


def should_skip(advantages: list[float]) -> bool:
    """Whether a group has no signal: all |advantage| <= 1e-8 (or it is empty)."""
    return all(abs(advantage) <= NO_SIGNAL for advantage in advantages)


def with_advantages(
    graded: pl.DataFrame,
    estimate: Estimator = compute_advantages,
    count: CountedRewards = as_graded,
    credit: TurnCredit = "trajectory",
) -> pl.DataFrame:
    """Adds `advantage`, `turn_advantages` and `trained`. `count(group)` is each completion's reward, or None to leave
    it out; `estimate` turns the others into advantages, if there are two; `credit` shares these out among turns
    ("trajectory": `turn_advantages` stays null). A group without a signal keeps its deviations from the mean. `trained`
    is false for such a group, for empty completions and for those without an advantage: the update skips them."""
    groups = [pl.DataFrame(schema=ROLLOUT_SCHEMA)]
    for group in split_groups(graded):
        rewards = count(group)
        gradable = [reward for reward in rewards if reward is not None]
        deviations = compute_advantages(gradable)
        # Estimate only where rewards differ: equal ones deviate from the mean by rounding, which dividing amplifies.
        signal = not should_skip(deviations)
        advantages = estimate(gradable) if signal else deviations
        remaining = iter(advantages if len(gradable) >= MIN_GRADABLE else [])
        column = [None if reward is None else next(remaining, None) for reward in rewards]
        advantage = pl.Series("advantage", column, dtype=ROLLOUT_SCHEMA["advantage"])
        trained = advantage.is_not_null() & (group["completion_tokens"].list.len() > 0) if signal else pl.lit(False)
        no_turn_advantages = pl.lit(None, ROLLOUT_SCHEMA["turn_advantages"]).alias("turn_advantages")
        group = group.with_columns(advantage, trained.alias("trained"), no_turn_advantages)
        groups.append(group if credit == "trajectory" else with_turn_advantages(group, credit))
    return pl.concat(groups)


def groups_without_signal(graded: pl.DataFrame, count: CountedRewards = as_graded) -> list[int]:
    """The indices of the groups of which no update can learn, by the rewards that `count`; none of which a completion
    has no reward: what it was worth is not known."""
    # An outage must not decide what is trained on: a group that it hit would be replaced for no fault of its own.
    # One that `on_hack=quarantine` took the reward from is known.
    unknown = pl.col("reward").is_null() & pl.col("suspicion").is_null()
    known = [group for group in split_groups(graded) if not group.select(unknown.any()).item()]
    rewards = [(group["group_index"][0], [each for each in count(group) if each is not None]) for group in known]
    return [index for index, gradable in rewards if should_skip(compute_advantages(gradable))]


Advantage = float | np.ndarray
"""Of a completion, or of each of its tokens (T,)."""
Config = Mapping[str, float]
LossValue = tuple[float, np.ndarray, int | None]
"""The loss of a completion, summed over its tokens; the tokens' importance ratios (T,) as the loss takes them; and how
many tokens it cuts at a threshold, None if it has none."""
LOSS_FN: Final = "importance_sampling"


def importance_sampling(trainer: np.ndarray, sampler: np.ndarray, advantage: Advantage, config: Config) -> LossValue:
    """-r A"""
    ratios = np.exp(trainer - sampler)
    return -_weighted(ratios, advantage), ratios, None


def ppo(trainer: np.ndarray, sampler: np.ndarray, advantage: Advantage, config: Config) -> LossValue:
    """-min(r A, clip(r, low, high) A)"""
    return _clipped(np.exp(trainer - sampler), advantage, config)


def cispo(trainer: np.ndarray, sampler: np.ndarray, advantage: Advantage, config: Config) -> LossValue:
    """-clip(r, low, high) l A, whose gradient is that of l alone"""
    ratios = np.exp(trainer - sampler)
    bounded = np.clip(ratios, config["clip_low_threshold"], config["clip_high_threshold"])
    return -_weighted(bounded * trainer, advantage), ratios, int((bounded != ratios).sum())


def gspo(trainer: np.ndarray, sampler: np.ndarray, advantage: Advantage, config: Config) -> LossValue:
    """-min(s A, clip(s, low, high) A), where s = exp(mean of l - q over the completion) for each token"""
    log_ratios = trainer - sampler
    return _clipped(np.full(len(log_ratios), np.exp(log_ratios.mean())), advantage, config)


def dro(trainer: np.ndarray, sampler: np.ndarray, advantage: Advantage, config: Config) -> LossValue:
    """-(l A - beta / 2 (l - q)^2)"""
    log_ratios = trainer - sampler
    penalty = config["beta"] / 2 * (log_ratios**2).sum()
    return float(penalty) - _weighted(trainer, advantage), np.exp(log_ratios), None


def _clipped(ratios: np.ndarray, advantage: Advantage, config: Config) -> LossValue:
    """Clips only where the advantage would push the ratio on: elsewhere it is still to be pulled back."""
    bounded = np.clip(ratios, config["clip_low_threshold"], config["clip_high_threshold"])
    clipped = bounded * advantage < ratios * advantage
    return -float(np.minimum(ratios * advantage, bounded * advantage).sum()), ratios, int(clipped.sum())


def _weighted(values: np.ndarray, advantage: Advantage) -> float:
    """The sum of `values` (T,), each times its advantage."""
    # One advantage is taken out of the sum: recorded losses are such products, to the bit.
    return float((values * advantage).sum()) if isinstance(advantage, np.ndarray) else float(values.sum()) * advantage


@dataclass(frozen=True, slots=True)
class LossRule:
    """`value(trainer, sampler, advantage, config)` is that of a completion; `trainer` and `sampler` are both sides'
    log-probabilities (T,) of its tokens, float64. `inputs(sampled)`, if any, are further inputs of a datum (n - 1), of
    whose targets `sampled` marks those that the policy sampled. A loss that `reads_prompt` penalises every target: with
    zeros as the prompt's log-probabilities it would train on the prompt."""

    value: Callable[[np.ndarray, np.ndarray, Advantage, Config], LossValue]
    inputs: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None
    reads_prompt: bool = False


LOSS_RULES = {
    "importance_sampling": LossRule(importance_sampling),
    "ppo": LossRule(ppo),
    "cispo": LossRule(cispo),
    # The mean log-ratio of what the mask marks is the ratio of all its tokens.
    "gspo": LossRule(gspo, inputs=lambda sampled: {"sequence_ratio_mask": sampled.astype(np.float32)}),
    "dro": LossRule(dro, reads_prompt=True),
}
"""By the value of the setting `loss_fn`; LOSSES has what each means and can be told."""


@dataclass(frozen=True)
class PolicyLoss:
    """A loss with all that it is told (a key for each that LOSSES has of it)."""

    name: LossName = LOSS_FN
    config: Config = field(default_factory=dict)


IMPORTANCE_SAMPLING = PolicyLoss()


class UpdateFailedError(InfraError):
    """An update failed half-way. The training client is no longer trustworthy: restore from the last durable state."""


class UpdateRefusedError(ConfigError):
    """The service refused an update for good (bad request, authentication, billing); the training client is lost."""


class TrainStepOutput(NamedTuple):
    forward_backward: tinker.ForwardBackwardOutput
    optim_step: tinker.OptimStepResponse


def make_datum(
    tokens: Sequence[int] | np.ndarray, logprobs: Sequence[float] | np.ndarray, ob_len: int, advantage: Advantage
) -> tinker.types.Datum:
    """The training example of one completion.

    `tokens` is prompt + completion (n of them) and `ob_len` >= 1 the prompt's length. `logprobs` are the sampler's, per
    completion token (n - ob_len), per token (n) or per target (n - 1). `advantage` is the completion's, or one per
    completion token. Input is tokens[:-1], targets are tokens[1:]; logprobs and advantages are 0 on the first
    ob_len - 1 targets, the prompt's. Raises ValueError for any other length, an empty prompt or completion."""
    datum = array_datum(np.asarray(tokens), logprobs, ob_len, advantage)
    inputs = np.asarray(tokens)[:-1].tolist()
    return tinker.types.Datum(tinker.types.ModelInput.from_ints(inputs), datum.loss_fn_inputs)


def array_datum(
    tokens: np.ndarray,
    logprobs: Sequence[float] | np.ndarray,
    ob_len: int,
    advantage: Advantage,
    loss_fn: LossName = LOSS_FN,
    sampled: np.ndarray | None = None,
) -> tinker.types.Datum:
    """As `make_datum`, with the inputs that `loss_fn` reads. `sampled` (n - ob_len) marks the completion's tokens that
    the policy sampled (None: all); the caller passes log-probabilities and advantages of 0 for the others.
    The input's tokens stay an array: a step's 24 million take 0.1 GB as arrays, 1 GB as lists. The SDK sends both as
    the same bytes, but can neither compare nor dump the array."""
    n = len(tokens)
    if ob_len < 1:
        raise ValueError(f"ob_len must be at least 1 (the prompt's length), got {ob_len}")
    if ob_len >= n:
        raise ValueError(f"the completion is empty: {n} tokens of which {ob_len} are the prompt")
    if len(logprobs) not in (n - ob_len, n, n - 1):
        raise ValueError(
            f"{len(logprobs)} logprobs for {n} tokens with a prompt of {ob_len}: expected {n - ob_len} (completion), "
            f"{n} (all tokens) or {n - 1} (targets)"
        )
    completion_logprobs = logprobs[len(logprobs) - (n - ob_len) :]  # they are the last in all three forms
    # Target i is token i + 1: the completion's targets begin at ob_len - 1, and the prompt's stay 0.
    sampler_logprobs = np.zeros(n - 1, dtype=np.float32)
    sampler_logprobs[ob_len - 1 :] = completion_logprobs
    advantages = np.zeros(n - 1, dtype=np.float32)
    advantages[ob_len - 1 :] = advantage
    inputs: Any = tokens[:-1].astype(np.int32)  # Any, and not validated below: the SDK declares a list
    chunk = tinker.types.EncodedTextChunk.model_construct(tokens=inputs)
    targets: dict[str, np.ndarray] = {
        "target_tokens": tokens[1:].astype(np.int64),
        "logprobs": sampler_logprobs,
        "advantages": advantages,
    }
    if (inputs_of := LOSS_RULES[loss_fn].inputs) is not None:
        is_sampled = np.arange(n - 1) >= ob_len - 1
        if sampled is not None:
            is_sampled[ob_len - 1 :] = sampled
        targets |= inputs_of(is_sampled)
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput(chunks=[chunk]),
        loss_fn_inputs={name: tinker.types.TensorData.from_numpy(values) for name, values in targets.items()},
    )


def train_step(
    training_client: tinker.TrainingClient, datums: Sequence[tinker.types.Datum], adam_params: tinker.AdamParams
) -> TrainStepOutput | None:
    """One optimizer step on `datums`: submits forward_backward and optim_step back to back, then waits on both.
    Blocks; in async code run it in a thread. Does nothing and returns None without datums. If either part fails, or
    is refused, raises UpdateFailedError or UpdateRefusedError: the training client must then not be used again."""
    if not datums:
        return None
    answers: list[Any] = []
    # Both are waited for: the SDK may have posted optim_step even if forward_backward was refused.
    for future in submit_train_step(training_client, datums, adam_params):
        try:
            answers.append(future.result())
        except Exception as error:
            answers.append(error)
    return finish_train_step(*answers)


def submit_train_step(
    training_client: tinker.TrainingClient,
    datums: Sequence[tinker.types.Datum],
    adam_params: tinker.AdamParams,
    loss: PolicyLoss = IMPORTANCE_SAMPLING,
) -> tuple[tinker.APIFuture[tinker.ForwardBackwardOutput], tinker.APIFuture[tinker.OptimStepResponse]]:
    """Submit both parts of a step, so that the service runs them in one go; raises as `train_step` does. If
    forward_backward fails or is cancelled, so is optim_step."""
    try:
        config, name = dict(loss.config) or None, cast(Any, loss.name)  # the SDK's type lists today's losses
        forward_backward = training_client.forward_backward(list(datums), loss_fn=name, loss_fn_config=config)
        optim_step = training_client.optim_step(adam_params)
    except Exception as error:
        raise _update_error(error) from error

    def cancel_optim_step(done: Future[tinker.ForwardBackwardOutput]) -> None:
        if done.cancelled() or done.exception() is not None:
            optim_step.future().cancel()

    # The SDK sends many datums in chunks, the first one last. If another chunk is refused, the first is never sent, and
    # optim_step would wait for its turn behind it for ever.
    forward_backward.future().add_done_callback(cancel_optim_step)
    return forward_backward, optim_step


def finish_train_step(
    output: tinker.ForwardBackwardOutput | BaseException, update: tinker.OptimStepResponse | BaseException
) -> TrainStepOutput:
    """The answer to a step, from what its two parts answered or failed with; raises as `train_step` does."""
    # The gradient's failure is the cause: its optimizer step is refused for good even where that one was retryable.
    if isinstance(output, BaseException):
        raise _update_error(output) from output
    if isinstance(update, BaseException):
        raise _update_error(update) from update
    return TrainStepOutput(output, update)


def _update_error(cause: BaseException) -> UpdateFailedError | UpdateRefusedError:
    """The error for a step that `cause` ended."""
    if is_fatal(cause):
        return UpdateRefusedError(f"the update was refused: {describe(cause)}")
    return UpdateFailedError(f"the update failed: {describe(cause)}")
