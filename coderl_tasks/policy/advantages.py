"""From the rewards of a group to what each of its completions is reinforced with.

1. Which rewards a group is compared by (`counted_rewards`): what a completion that ran into its limit, or nearly,
   counts for.

   graded      its reward as it is: without a closed block of code that is a format error
   masked      nothing: it is not trained on, nor in the group's mean, since its tokens say little about what was wrong
   penalised   its reward less what grows from 0 to 1 over the last tokens before the limit (Yu et al., "DAPO", soft
               overlong punishment): shorter is better before it is too late

2. Whether they differ (`should_skip`): a group whose rewards are equal has no signal and is left out.
3. How far each is off (`ESTIMATORS`). An estimator sees the gradable rewards (G,) of one group, at least two of them,
   and only where they differ: the rule is asked before it, on deviations that nothing is divided by.

The column `reward` stays as it was graded; advantages follow from what is said here.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import polars as pl

from coderl_tasks.errors import ConfigError
from coderl_tasks.policy.adaptive import Outcome, outcome
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.policy.sampling import completion_budget, split_groups

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


def compute_advantages(rewards: list[float]) -> list[float]:
    """A_i = r_i - mean(r): the deviation of each reward from the mean of its group.

    It is not divided by the group's standard deviation, which would give nearly solved and nearly hopeless problems
    more weight (Liu et al., "Understanding R1-Zero-Like Training").
    """
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
    """A_i = r_i - mean of r_j over j != i: RLOO (Ahmadian et al., "Back to Basics").

    A completion is not part of its own baseline, which keeps the estimate unbiased. It is the mean-centred advantage
    times G / (G - 1): the same directions, with more weight for small groups.
    """
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def maxrl(rewards: list[float]) -> list[float]:
    """A_i = (r_i - mean(r)) / mean(r): MaxRL (Tajwar et al., "Maximum Likelihood Reinforcement Learning").

    With rewards of 0 and 1 a group's gradient is then the mean over its right completions, an estimate of the gradient
    of log pass rate instead of the pass rate: hard problems weigh more. Raises ConfigError for a reward below 0: the
    mean may then have either sign.
    """
    if min(rewards) < 0:
        raise ConfigError(
            f"advantage=maxrl divides by a group's mean reward, and there is one of {min(rewards):g}: it needs rewards "
            "that are not negative (of code: format_coef=0), or another advantage"
        )
    # No epsilon: a mean of G such rewards is at least the greatest of them / G, so that no advantage exceeds G - 1.
    mean = sum(rewards) / len(rewards)
    return [deviation / mean for deviation in compute_advantages(rewards)]


ESTIMATORS: dict[str, Estimator] = {
    "mean_centred": compute_advantages,
    "std_normalised": std_normalised,
    "leave_one_out": leave_one_out,
    "maxrl": maxrl,
}
"""By the value of the setting `advantage`."""


def estimator(name: str, eps: float) -> Estimator:
    """The estimator of this name; `eps` is what std_normalised adds to the standard deviation, the others need none."""
    return partial(std_normalised, eps=eps) if name == "std_normalised" else ESTIMATORS[name]


def as_graded(group: pl.DataFrame) -> list[float | None]:
    return list(group["reward"])


def masked(group: pl.DataFrame) -> list[float | None]:
    """The rewards of the group, None for completions that were cut off."""
    rows = group.select("reward", "stop_reason").iter_rows()
    return [None if stop_reason == TRUNCATED else reward for reward, stop_reason in rows]


def penalised(group: pl.DataFrame, *, max_tokens: int, context: int, overlong_tokens: int | None) -> list[float | None]:
    """The rewards of the group less its completions' penalties. `max_tokens` is the limit of all where the `context`
    leaves as much; the penalty begins `overlong_tokens` before a completion's limit, None for a fifth of it."""
    counted: list[float | None] = []
    rows = group.select("reward", pl.col("prompt_tokens", "completion_tokens").list.len()).iter_rows()
    for reward, prompt, completion in rows:
        if reward is None:
            counted.append(None)
            continue
        limit = completion_budget(prompt, max_tokens, context)
        # Of a limit that the context cuts short the same length may be all there is.
        overlong = min(limit, overlong_tokens or max(1, limit // OVERLONG_SHARE))
        counted.append(reward - min(1.0, max(0, completion - (limit - overlong)) / overlong))
    return counted


def counted_rewards(kind: str, *, max_tokens: int, context: int, overlong_tokens: int | None) -> CountedRewards:
    """The rule of this name, with the limits that `penalised` needs."""
    with_limits = partial(penalised, max_tokens=max_tokens, context=context, overlong_tokens=overlong_tokens)
    rules: dict[str, CountedRewards] = {"graded": as_graded, "masked": masked, "penalised": with_limits}
    return rules[kind]


def should_skip(advantages: list[float]) -> bool:
    """Whether a group has no signal: all |advantage| <= 1e-8 (or it is empty)."""
    return all(abs(advantage) <= NO_SIGNAL for advantage in advantages)


def with_advantages(
    graded: pl.DataFrame, estimate: Estimator = compute_advantages, count: CountedRewards = as_graded
) -> pl.DataFrame:
    """Adds `advantage` and `trained`. `count(group)` is each completion's reward, or None to leave it out; `estimate`
    turns the others into advantages, if there are two. A group without a signal keeps its deviations from the mean.
    The update skips it (`trained` is false), empty completions, and those without an advantage."""
    groups = [pl.DataFrame(schema=ROLLOUT_SCHEMA)]
    for group in split_groups(graded):
        rewards = count(group)
        gradable = [reward for reward in rewards if reward is not None]
        signal = _has_signal(rewards)
        # Estimate only where rewards differ: equal ones deviate from the mean by rounding, which dividing amplifies.
        advantages = (estimate if signal else compute_advantages)(gradable) if len(gradable) >= MIN_GRADABLE else []
        remaining = iter(advantages)
        column = [None if reward is None else next(remaining, None) for reward in rewards]
        advantage = pl.Series("advantage", column, dtype=ROLLOUT_SCHEMA["advantage"])
        trained = advantage.is_not_null() & (group["completion_tokens"].list.len() > 0) if signal else pl.lit(False)
        groups.append(group.with_columns(advantage, trained.alias("trained")))
    return pl.concat(groups)


def groups_without_signal(graded: pl.DataFrame, count: CountedRewards = as_graded) -> list[int]:
    """The indices of the groups of which no update can learn, by the rewards that `count`; none of which a completion
    has no reward: what it was worth is not known."""
    # An outage must not decide what is trained on: a group that it hit would be replaced for no fault of its own.
    known = [group for group in split_groups(graded) if not group["reward"].has_nulls()]
    return [group["group_index"][0] for group in known if not _has_signal(count(group))]


def group_outcomes(graded: pl.DataFrame, count: CountedRewards = as_graded) -> list[Outcome]:
    """Of each group, in order, what `selection=adaptive` learns of its problem, by the rewards that `count`."""
    return [(group["problem_id"][0], *outcome(count(group))) for group in split_groups(graded)]


def _has_signal(rewards: Sequence[float | None]) -> bool:
    """Whether an update can learn of a group with these rewards, None for members that do not count."""
    gradable = [reward for reward in rewards if reward is not None]
    return len(gradable) >= MIN_GRADABLE and not should_skip(compute_advantages(gradable))
