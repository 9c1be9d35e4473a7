"""Rollouts as frames: sampled groups, the join with their grades, and the advantages of a training step.

group_frame         GroupRequest + completions         -> SAMPLED_SCHEMA, one group
graded_group        group + ScoredCompletions          -> ROLLOUT_SCHEMA, advantage null, trained false
in_order            groups                             -> one frame, in group and sample order
with_advantages     graded                             -> ROLLOUT_SCHEMA with advantage and trained
first_failures      graded                             -> by problem, the first failing test of each program
groups_without_signal   graded                         -> the groups of which no update can learn
group_outcomes      graded                             -> per group, its problem and how many completions were right
require_sampled     sampled                            -> InfraError if too much of it cannot be trained on
require_graded      graded                             -> SandboxDownError if too much of it could not be graded
require_rewards     graded                             -> CoderlError if compute_reward failed on too much of it
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from coderl_tasks.errors import CoderlError, InfraError, SandboxDownError
from coderl_tasks.grading.verdict import ScoredCompletion, Verdict
from coderl_tasks.policy.adaptive import Outcome, outcome
from coderl_tasks.policy.advantages import Estimator, compute_advantages
from coderl_tasks.policy.grpo import should_skip
from coderl_tasks.policy.rollout import GRADED_COLUMNS, GRADED_SCHEMA, ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.sampling import Completion, GroupRequest
from coderl_tasks.policy.step_metrics import ROLLOUT_METRICS, ScoredRollouts, computed
from coderl_tasks.policy.truncation import CountedRewards, as_graded

ORDER = ("group_index", "sample_index")
OUTSIDE_TRAINING = -1
"""The step of what a profile or an evaluation samples."""
MIN_GRADABLE = 2
"""A group with fewer graded members has no mean to deviate from."""

MOST_LOST = 0.1
"""Of a step's samples, or of its programs: what is left when more fails is no fair sample."""

MOST_REWARD_ERRORS = 0.05
"""Of a step's completions: a reward function that fails more often is to be mended, not trained through."""

HISTORY_COLUMNS = ("step", "group_index", "problem_id", "code", "verdict", "tests_total", "first_failed")
"""What `first_failures` needs, and `tests_total`, which tells two lists of tests of one problem apart."""


def group_frame(
    request: GroupRequest, completions: Sequence[Completion], *, decode: Callable[[list[int]], str]
) -> pl.DataFrame:
    """One sampled group as a frame of SAMPLED_SCHEMA, one row per completion, numbered from `request.first_sample`.

    `decode` turns completion tokens into the text that is graded.
    """
    rows = [
        {
            "step": request.step,
            "attempt": request.attempt,
            "problem_id": request.problem_id,
            "split": request.split,
            "group_index": request.group_index,
            "sample_index": sample_index,
            "sampler_step": request.sampler_step,
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": completion.tokens,
            "logprobs": completion.logprobs,
            "completion": decode(completion.tokens),
            "stop_reason": completion.stop_reason,
        }
        for sample_index, completion in enumerate(completions, request.first_sample)
    ]
    return pl.DataFrame(rows, schema=SAMPLED_SCHEMA)


def graded_group(sampled: pl.DataFrame, scored: Sequence[ScoredCompletion | None]) -> pl.DataFrame:
    """One sampled group with what grading says of it: ROLLOUT_SCHEMA, in the group's order.

    `scored` has one ScoredCompletion per sample, None for one that was left out. Infra errors get null scores and
    reward. Raises ValueError if it has another number.
    """
    rows = [_graded_row(one) for one in scored]
    if len(rows) != sampled.height:
        raise ValueError(f"{len(rows)} of {sampled.height} completions of a group were scored")
    return pl.concat([sampled, pl.DataFrame(rows, schema=GRADED_SCHEMA)], how="horizontal").select(list(ROLLOUT_SCHEMA))


def in_order(groups: Iterable[pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The groups of a step as one frame of `schema`, in group and sample order."""
    # Groups arrive in any order, and the last bits of a sum of gradients depend on it: a replay needs one order.
    return pl.concat([pl.DataFrame(schema=schema), *groups]).sort(ORDER)


def with_advantages(
    graded: pl.DataFrame, estimate: Estimator = compute_advantages, count: CountedRewards = as_graded
) -> pl.DataFrame:
    """`graded` with the advantages of each group as `estimate` has them of the rewards that `count`, and `trained` on
    the rows the update uses.

    A group is its gradable members that count; infra errors have no advantage, and a group with fewer than two
    members has none at all. One without signal keeps the deviations from its mean, whatever estimates. Not trained on:
    those, and empty completions.
    """
    groups = graded.sort(ORDER).partition_by("group_index", maintain_order=True)
    return pl.concat(
        [pl.DataFrame(schema=ROLLOUT_SCHEMA), *(_group_advantages(group, estimate, count) for group in groups)]
    )


def groups_without_signal(graded: pl.DataFrame, count: CountedRewards = as_graded) -> list[int]:
    """The indices of the groups of which no update can learn, by the rewards that `count`.

    A group of which a completion has no reward is none of them: the fault was a service's, and what the completion was
    worth is not known.
    """
    groups = graded.sort(ORDER).partition_by("group_index", maintain_order=True)
    known = [group for group in groups if not group["reward"].has_nulls()]
    return [group["group_index"][0] for group in known if not _has_signal(count(group))]


def group_outcomes(graded: pl.DataFrame, count: CountedRewards = as_graded) -> list[Outcome]:
    """Of each group, in order, what `selection=adaptive` learns of its problem, by the rewards that `count`."""
    groups = graded.sort(ORDER).partition_by("group_index", maintain_order=True)
    return [(group["problem_id"][0], *outcome(count(group))) for group in groups]


def rollout_metrics(rollouts: pl.DataFrame, own_groups: int | None = None) -> dict[str, Any]:
    """ROLLOUT_METRICS of a step by name, from its scored rollouts (ROLLOUT_SCHEMA), of which so many groups are its own
    and not in place of others; None where none is."""
    return computed(ROLLOUT_METRICS, ScoredRollouts(rollouts, own_groups))


def first_failures(rollouts: pl.DataFrame) -> dict[str, list[int | None]]:
    """By problem id: the first failing test of each program that was graded, None for one that passed all.

    Identical code of a group was graded once and counts once. What was not run, or could not be, is left out.
    """
    graded = rollouts.filter(
        pl.col("code").is_not_null() & ((pl.col("verdict") == Verdict.PASSED) | pl.col("first_failed").is_not_null())
    )
    programs = graded.unique(["step", "group_index", "problem_id", "code"], maintain_order=True)
    by_problem = programs.group_by("problem_id", maintain_order=True).agg("first_failed")
    return dict(by_problem.iter_rows())


def require_sampled(sampled: pl.DataFrame, what: str) -> None:
    """Raises InfraError, which names `what`, if over MOST_LOST of the samples came without usable log-probabilities."""
    lost = int(sampled["logprobs"].is_null().sum())
    if lost > MOST_LOST * sampled.height:
        raise InfraError(
            f"{what}: {lost} of {sampled.height} samples came without a finite log-probability for each token, and "
            "cannot be trained on: their groups are sampled again"
        )


def require_graded(rollouts: pl.DataFrame, what: str) -> None:
    """Raises SandboxDownError, which names `what`, if over MOST_LOST of the programs met an outage, not a verdict.

    What is left by an outage is no fair sample: mostly completions without a program, which need no sandbox. A few
    infra errors among many verdicts are left out and counted.
    """
    programs = rollouts.filter(pl.col("verdict") != Verdict.FORMAT_ERROR)["verdict"]
    lost = int((programs == Verdict.INFRA_ERROR).sum())
    if lost > MOST_LOST * len(programs):
        raise SandboxDownError(
            f"{what}: {lost} of {len(programs)} programs could not be graded: is the sandbox up? (coderl doctor)"
        )


def require_rewards(rollouts: pl.DataFrame, what: str) -> None:
    """Raises CoderlError, which names `what` and shows a traceback, if compute_reward failed on over MOST_REWARD_ERRORS
    of the completions. No retry can help, but a mended function: what was sampled stays recorded for it."""
    failed = rollouts.filter(pl.col("verdict") == Verdict.REWARD_ERROR)
    if failed.height > MOST_REWARD_ERRORS * rollouts.height:
        first = failed.row(0, named=True)
        raise CoderlError(
            f"{what}: compute_reward failed on {failed.height} of {rollouts.height} completions, more than "
            f"{MOST_REWARD_ERRORS:.0%}: mend the reward function, then start again. On completion "
            f"{first['sample_index']} of problem {first['problem_id']}:\n{first['reward_error']}"
        )


def _graded_row(scored: ScoredCompletion | None) -> dict[str, Any]:
    if scored is None:
        return {**dict.fromkeys(GRADED_SCHEMA), "trained": False}
    return {name: column.value(scored) for name, column in GRADED_COLUMNS.items()}


def _has_signal(rewards: Sequence[float | None]) -> bool:
    """Whether an update can learn of a group with these rewards, None for members that do not count."""
    gradable = [reward for reward in rewards if reward is not None]
    return len(gradable) >= MIN_GRADABLE and not should_skip(compute_advantages(gradable))


def _group_advantages(group: pl.DataFrame, estimate: Estimator, count: CountedRewards) -> pl.DataFrame:
    rewards = count(group)
    gradable = [reward for reward in rewards if reward is not None]
    signal = _has_signal(rewards)
    # Estimated only where rewards differ: equal ones deviate from their mean by rounding, which a division would blow
    # up.
    advantages = (estimate if signal else compute_advantages)(gradable) if len(gradable) >= MIN_GRADABLE else []
    remaining = iter(advantages)
    column = [None if reward is None else next(remaining, None) for reward in rewards]
    return group.with_columns(
        pl.Series("advantage", column, dtype=ROLLOUT_SCHEMA["advantage"]),
    ).with_columns(
        (pl.lit(signal) & pl.col("advantage").is_not_null() & (pl.col("completion_tokens").list.len() > 0)).alias(
            "trained"
        )
    )
