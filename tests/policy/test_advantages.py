"""The advantage estimators against numbers worked out by hand, and the rule that is asked before them."""

import inspect
import math
from statistics import mean, stdev

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.errors import ConfigError
from coderl_tasks.policy.grpo import ESTIMATORS, estimator, with_advantages
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.settings import TrainSettings

REWARDS = [1.0, 0.0, 0.0, 0.5]
BY_HAND = {
    "mean_centred": [0.625, -0.375, -0.375, 0.125],
    # The squared deviations add up to 0.6875, of which a third is the variance.
    "std_normalised": [d / (math.sqrt(0.6875 / 3) + 1e-6) for d in (0.625, -0.375, -0.375, 0.125)],
    "leave_one_out": [1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3],
    "maxrl": [0.625 / 0.375, -1.0, -1.0, 0.125 / 0.375],
}

SAID = {
    "mean_centred": "1 − 0.375",
    "std_normalised": "(1 − 0.375) / (0.4787 + 1e-06)",
    "leave_one_out": "1 − 0.1667",
    "maxrl": "(1 − 0.375) / 0.375",
}


def graded(*groups: list[float | None]) -> pl.DataFrame:
    rows = [
        {"group_index": index, "sample_index": sample, "completion_tokens": [1], "reward": reward}
        for index, rewards in enumerate(groups)
        for sample, reward in enumerate(rewards)
    ]
    return pl.DataFrame([dict.fromkeys(ROLLOUT_SCHEMA) | row for row in rows], schema=ROLLOUT_SCHEMA)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_by_hand(name: str) -> None:
    assert estimator(name, 1e-6)(REWARDS) == pytest.approx(BY_HAND[name], rel=1e-15, abs=1e-15)


def test_the_epsilon_is_added_to_the_deviation() -> None:
    least = 0.5 / (math.sqrt(0.5) + 1)
    assert estimator("std_normalised", 1.0)([1.0, 0.0]) == pytest.approx([least, -least], rel=1e-15)


@given(st.lists(st.integers(0, 64), min_size=2, max_size=40).filter(lambda rewards: len(set(rewards)) > 1))
def test_estimators_agree_in_direction_and_differ_in_scale(counts: list[int]) -> None:
    rewards = [count / 64 for count in counts]
    centred = estimator("mean_centred", 0)(rewards)
    for name, scale in (
        ("std_normalised", 1 / stdev(rewards)),
        ("leave_one_out", len(rewards) / (len(rewards) - 1)),
        ("maxrl", 1 / mean(rewards)),
    ):
        found = estimator(name, 0)(rewards)
        assert found == pytest.approx([scale * deviation for deviation in centred], rel=1e-9, abs=1e-9)
    assert max(estimator("maxrl", 0)(rewards)) <= len(rewards) - 1 + 1e-9
    for name in ESTIMATORS:
        assert mean(map(abs, estimator(name, 0)(rewards))) <= 2, "a warning sign judges losses by it"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_are_skipped_before_anything_is_divided(name: str) -> None:
    # The mean of seven times 0.3 is rounded: divided by the deviation, that would be an advantage of about 1.
    frame = with_advantages(graded([0.3] * 7, [1.0, 0.0, None], [1.0, None]), estimator(name, 0))
    assert frame.filter(pl.col("group_index") == 0)["advantage"].abs().max() < 1e-8  # type: ignore[operator]
    assert frame["trained"].to_list() == [False] * 7 + [True, True, False, False, False]
    assert frame["advantage"].is_null().to_list() == [False] * 9 + [True, True, True]


def test_maxrl_refuses_negative_rewards() -> None:
    with pytest.raises(ConfigError, match=r"advantage=maxrl .* one of -0.1: .*format_coef=0"):
        estimator("maxrl", 0)([1.0, -0.1])


def test_each_is_a_small_function_and_a_value_of_the_setting() -> None:
    assert all(len(inspect.getsource(rule.estimate).splitlines()) < 20 for rule in ESTIMATORS.values())
    assert TrainSettings.model_json_schema()["properties"]["advantage"]["enum"] == list(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_the_viewer_says_of_an_estimator_gives_its_numbers(name: str) -> None:
    rule, rows = ESTIMATORS[name], ", ".join(f"({place}, {reward})" for place, reward in enumerate(REWARDS))
    sql = f"SELECT {rule.as_sql(1e-6)} FROM (VALUES {rows}) AS of_group(place, reward) ORDER BY place"
    assert [value for (value,) in duckdb.execute(sql).fetchall()] == pytest.approx(BY_HAND[name], rel=1e-12)
    assert rule.with_numbers(1.0, REWARDS, 1e-6) == SAID[name]
