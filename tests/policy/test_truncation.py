"""Completions that ran into their limit: what they count for, and what is trained on."""

import polars as pl
import pytest

from coderl_tasks.policy.grpo import counted_rewards, with_advantages
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.settings.families import Truncation

LENGTHS = [4, 8, 9, 10, 10]
REWARDS = [1.0, 0.0, 1.0, -0.1, None]


def graded(prompt: int = 3) -> pl.DataFrame:
    """One group of completions with a limit of 10 tokens; the last two were cut off, and of these one not graded."""
    rows = [
        {
            "group_index": 0,
            "sample_index": index,
            "prompt_tokens": [1] * prompt,
            "completion_tokens": [1] * length,
            "stop_reason": "length" if length == 10 else "stop",
            "reward": reward,
        }
        for index, (length, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True))
    ]
    return pl.DataFrame([dict.fromkeys(ROLLOUT_SCHEMA) | row for row in rows], schema=ROLLOUT_SCHEMA)


def counted(kind: str, overlong: int | None = None, context: int = 100, prompt: int = 3) -> list[float | None]:
    count = counted_rewards(Truncation.model_validate({"kind": kind, "overlong_tokens": overlong}), 10, context)
    return count(graded(prompt))


def test_by_default_a_reward_is_what_was_graded() -> None:
    assert counted("graded") == REWARDS
    whole = with_advantages(graded())
    assert whole.equals(with_advantages(graded(), count=lambda group: list(group["reward"])))
    assert whole["trained"].to_list() == [True, True, True, True, False]


def test_what_was_cut_off_is_neither_trained_on_nor_in_the_mean() -> None:
    count = counted_rewards(Truncation(kind="masked"), 10, 100)
    frame = with_advantages(graded(), count=count)
    assert frame["trained"].to_list() == [True, True, True, False, False]
    assert frame["advantage"].to_list() == [
        pytest.approx(1 / 3),
        pytest.approx(-2 / 3),
        pytest.approx(1 / 3),
        None,
        None,
    ]
    assert frame["reward"].to_list() == REWARDS


@pytest.mark.parametrize(
    ("overlong", "context", "penalties"),
    [
        (4, 100, [0, 0.5, 0.75, 1]),
        (None, 100, [0, 0, 0.5, 1]),  # a fifth of 10 tokens
        (10, 100, [0.4, 0.8, 0.9, 1]),
        (4, 12, [0, 0.75, 1, 1]),  # the prompt of 3 leaves 9 of the context
    ],
)
def test_a_penalty_grows_to_1_before_the_limit(overlong: int | None, context: int, penalties: list[float]) -> None:
    expected = [r - p for r, p in zip(REWARDS, penalties, strict=False) if r is not None]
    assert counted("penalised", overlong, context) == [*map(pytest.approx, expected), None]


def test_penalties_alone_are_a_signal() -> None:
    count = counted_rewards(Truncation(kind="penalised", overlong_tokens=4), 10, 100)
    equal = graded().with_columns(reward=pl.lit(1.0))
    assert not with_advantages(equal)["trained"].any()
    frame = with_advantages(equal, count=count)
    assert frame["trained"].all()
    assert frame["advantage"].to_list() == sorted(frame["advantage"], reverse=True)


def test_in_several_turns_a_trajectory_has_a_limit_too() -> None:
    answer = {"text": "", "stop_reason": "stop", "environment_text": "", "is_split": False, "check": None}
    first = answer | {"n_tokens": 4, "environment_tokens": [], "kept": 3}
    second = answer | {"n_tokens": 4, "environment_tokens": [1] * 5, "kept": 7}
    group = graded().filter(pl.col("completion_tokens").list.len() == 8)
    group = group.with_columns(turns=pl.Series([[first, second]], dtype=ROLLOUT_SCHEMA["turns"]), reward=pl.lit(1.0))
    rule = Truncation(kind="penalised", overlong_tokens=4)
    # The last answer has 4 tokens of its own limit of 10, or of what 9 tokens before it leave of the trajectory.
    for of_trajectory, penalty in ((None, 0), (20, 0), (15, 0.5), (13, 1)):
        assert counted_rewards(rule, 10, 100, of_trajectory)(group) == [1 - penalty]


def test_a_prompt_that_leaves_no_room_has_the_whole_penalty() -> None:
    group = graded(prompt=12).with_columns(completion_tokens=pl.lit([], pl.List(pl.Int64)), reward=pl.lit(1.0))
    assert counted_rewards(Truncation(kind="penalised"), 10, 12)(group) == [0.0] * len(LENGTHS)
