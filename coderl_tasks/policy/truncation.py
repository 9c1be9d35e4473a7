"""What a completion that ran into its limit, or nearly, counts for among the rewards of its group.

graded      its reward as it is: without a closed block of code that is a format error
masked      nothing: it is not trained on, nor in the group's mean, since its tokens say little about what was wrong
penalised   its reward less what grows from 0 to 1 over the last tokens before the limit (Yu et al., "DAPO", soft
            overlong punishment): shorter is better before it is too late

The column `reward` stays as it was graded; advantages follow from what is said here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from coderl_tasks.policy.rollout import TRUNCATED
from coderl_tasks.policy.sampling import completion_budget

CountedRewards = Callable[[pl.DataFrame], list[float | None]]
"""The rewards that a graded group (ROLLOUT_SCHEMA) is compared by, None where a completion has none."""
OVERLONG_SHARE = 5
"""The penalty begins in the last of so many parts of the limit, where no length is given (DAPO: 4,096 of 20,480)."""


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
