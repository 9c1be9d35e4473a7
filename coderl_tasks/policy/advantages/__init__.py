"""From the rewards of a group to what each of its completions is reinforced with.

1. Which rewards a group is compared by (`counted_rewards`): what a completion that ran into its limit, or nearly,
   counts for.

   graded      its reward as it is: without a closed block of code that is a format error
   masked      nothing: it is not trained on, nor in the group's mean, since its tokens say little about what was wrong
   penalised   its reward less what grows from 0 to 1 over the last tokens before the limit (Yu et al., "DAPO", soft
               overlong punishment): shorter is better before it is too late

2. Whether they differ (`should_skip`): a group whose rewards are equal has no signal and is left out.
3. How far each is off (`ESTIMATORS`, one per file). An estimator sees the gradable rewards of one group, at least two
   of them, and only where they differ: the rule is asked before it, on deviations that nothing is divided by.

The column `reward` stays as it was graded; advantages follow from what is said here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from coderl_tasks.policy.adaptive import Outcome, outcome
from coderl_tasks.policy.advantages.leave_one_out import leave_one_out
from coderl_tasks.policy.advantages.maxrl import maxrl
from coderl_tasks.policy.advantages.mean_centred import compute_advantages
from coderl_tasks.policy.advantages.std_normalised import std_normalised
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
Estimator = Callable[[list[float]], list[float]]


def as_graded(group: pl.DataFrame) -> list[float | None]:
    """The rewards of the group as they are."""
    return list(group["reward"])


def masked(group: pl.DataFrame) -> list[float | None]:
    """The rewards of the group, None for completions that were cut off."""
    rows = group.select("reward", "stop_reason").iter_rows()
    return [None if stop_reason == TRUNCATED else reward for reward, stop_reason in rows]


@dataclass(frozen=True, slots=True)
class Penalised:
    """The rewards of a group less its completions' penalties. `max_tokens` is the limit of all, in tokens, where the
    `context` leaves as much; `overlong_tokens` before a completion's limit the penalty begins, None for a fifth of
    it."""

    max_tokens: int
    context: int
    overlong_tokens: int | None

    def __call__(self, group: pl.DataFrame) -> list[float | None]:
        lengths = group.select("reward", pl.col("prompt_tokens", "completion_tokens").list.len()).iter_rows()
        return [None if reward is None else reward - self._penalty(*both) for reward, *both in lengths]

    def _penalty(self, prompt: int, completion: int) -> float:
        limit = completion_budget(prompt, self.max_tokens, self.context)
        # Of a limit that the context cuts short the same length may be all there is.
        overlong = min(limit, self.overlong_tokens or max(1, limit // OVERLONG_SHARE))
        return min(1.0, max(0, completion - (limit - overlong)) / overlong)


def counted_rewards(kind: str, *, max_tokens: int, context: int, overlong_tokens: int | None) -> CountedRewards:
    """The rule of this name."""
    rules: dict[str, CountedRewards] = {
        "graded": as_graded,
        "masked": masked,
        "penalised": Penalised(max_tokens, context, overlong_tokens),
    }
    return rules[kind]


def should_skip(advantages: list[float]) -> bool:
    """Whether a group has no signal: all |advantage| <= 1e-8 (or it is empty)."""
    return all(abs(advantage) <= NO_SIGNAL for advantage in advantages)


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


def with_advantages(
    graded: pl.DataFrame, estimate: Estimator = compute_advantages, count: CountedRewards = as_graded
) -> pl.DataFrame:
    """`graded` with the advantages of each group as `estimate` has them of the rewards that `count`, and `trained` on
    the rows the update uses.

    A group is its gradable members that count; infra errors have no advantage, and a group with fewer than two
    members has none at all. One without signal keeps the deviations from its mean, whatever estimates. Not trained on:
    those, and empty completions.
    """
    groups = [pl.DataFrame(schema=ROLLOUT_SCHEMA)]
    for group in split_groups(graded):
        rewards = count(group)
        gradable = [reward for reward in rewards if reward is not None]
        signal = _has_signal(rewards)
        # Estimated only where rewards differ: equal ones deviate from their mean by rounding, which a division would
        # blow up.
        advantages = (estimate if signal else compute_advantages)(gradable) if len(gradable) >= MIN_GRADABLE else []
        remaining = iter(advantages)
        column = [None if reward is None else next(remaining, None) for reward in rewards]
        advantage = pl.Series("advantage", column, dtype=ROLLOUT_SCHEMA["advantage"])
        trained = advantage.is_not_null() & (group["completion_tokens"].list.len() > 0) if signal else pl.lit(False)
        groups.append(group.with_columns(advantage, trained.alias("trained")))
    return pl.concat(groups)


def groups_without_signal(graded: pl.DataFrame, count: CountedRewards = as_graded) -> list[int]:
    """The indices of the groups of which no update can learn, by the rewards that `count`.

    A group of which a completion has no reward is none of them: the fault was a service's, and what the completion was
    worth is not known.
    """
    groups = split_groups(graded)
    # An outage must not decide what is trained on: a group that it hit would be replaced for no fault of its own.
    known = [group for group in groups if not group["reward"].has_nulls()]
    return [group["group_index"][0] for group in known if not _has_signal(count(group))]


def group_outcomes(graded: pl.DataFrame, count: CountedRewards = as_graded) -> list[Outcome]:
    """Of each group, in order, what `selection=adaptive` learns of its problem, by the rewards that `count`."""
    groups = split_groups(graded)
    return [(group["problem_id"][0], *outcome(count(group))) for group in groups]


def _has_signal(rewards: Sequence[float | None]) -> bool:
    """Whether an update can learn of a group with these rewards, None for members that do not count."""
    gradable = [reward for reward in rewards if reward is not None]
    return len(gradable) >= MIN_GRADABLE and not should_skip(compute_advantages(gradable))
