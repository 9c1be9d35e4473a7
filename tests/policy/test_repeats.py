"""Repeated completions: what chance explains is taken off, and what it does not is clones."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from coderl_tasks.policy.step_metrics import excess_rate, group_repeats


def frame(*groups: Sequence[tuple[list[int], float | None]]) -> pl.DataFrame:
    """Groups of (tokens, log-probability of the whole); None: the service gave none."""
    rows = [
        {
            "group_index": index,
            "completion_tokens": tokens,
            "logprobs": None if whole is None else [whole / len(tokens)] * len(tokens),
        }
        for index, group in enumerate(groups)
        for tokens, whole in group
    ]
    schema = {"group_index": pl.Int32(), "completion_tokens": pl.List(pl.Int32()), "logprobs": pl.List(pl.Float32())}
    return group_repeats(pl.DataFrame(rows, schema=schema))


@pytest.mark.parametrize(
    ("group", "repeated", "expected", "clones"),
    [
        ([([1, 2], -20.0)] * 4, 4, 0.0, True),
        ([([1, 2], -20.0)] * 3 + [([1, 2], None)], 3, 0.0, True),
        ([([1, 2], -20.0)] * 3 + [([1, 3], -20.0)], 3, 0.0, False),
        ([([1, 2], math.log(0.9))] * 4, 4, 4 * (1 - 0.1**3), False),
        ([([1, 2], 0.0)] * 4, 4, 4.0, False),
        ([([1, 2], math.log(0.5)), ([1, 3], math.log(0.25))], 0, 0.75, False),
        ([([1, 2], -20.0)], 0, 0.0, False),
        ([([1, 12], -20.0), ([11, 2], -20.0)], 0, 0.0, False),
    ],
)
def test_a_group(group: list[tuple[list[int], float | None]], repeated: int, expected: float, clones: bool) -> None:
    (row,) = frame(group).iter_rows(named=True)
    assert (row["repeated"], row["clones"]) == (repeated, clones)
    assert row["expected"] == pytest.approx(expected, abs=1e-6)


def test_the_estimate_of_chance_is_unbiased() -> None:
    draw = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.1, *[0.002] * 100])
    drawn = draw.choice(len(shares), p=shares, size=(400, 8))
    found = frame(*([([int(token)], math.log(shares[token])) for token in group] for group in drawn))
    repeated, expected = (sum(found[column].to_list()) for column in ("repeated", "expected"))
    assert repeated / drawn.size > 0.5
    assert abs(repeated - expected) / drawn.size < 0.02
    assert not found["clones"].any()


def test_the_rate_is_over_all_groups() -> None:
    clones, good = [([1, 2], -20.0)] * 4, [([1, token], -20.0) for token in range(4)]
    assert excess_rate(frame(clones, good)) == pytest.approx(0.5, abs=1e-6)
    assert excess_rate(frame(good)) == 0.0
    assert excess_rate(frame([([1], None)])) is None
