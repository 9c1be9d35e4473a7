"""How the advantage of a completion in several turns is shared out among its turns.

A rule sees a graded group with its completions' advantages, and returns each completion's advantage per turn, None
where it is the completion's own for all of them.

    trajectory   A for each turn: what led to the last answer is reinforced with it
    last         A for the last turn, 0 for those before it
    discounted   DISCOUNT ** (turns that follow) * A (Baronio et al., "Kevin", discounts later turns' rewards so)
    per_turn     A + d - mean d, d being 1 for the turn whose answer first passes, else 0, and the mean over the group's
                 turns of that number (Zeng et al., "Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level
                 Credit Assignment": outcome and turn advantage, each relative to the group). Of the last answer the
                 tests decide, of those before it the statement's samples.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import polars as pl

from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA

TurnCredit = Literal["trajectory", "last", "discounted", "per_turn"]
Rule = Callable[[list[dict[str, Any]]], list[list[float] | None]]
DISCOUNT = 0.4


def per_turn(rows: list[dict[str, Any]]) -> list[list[float] | None]:
    gains = [_gains(row) for row in rows]
    by_turn: dict[int, list[float]] = {}
    for row, own in zip(rows, gains, strict=True):
        for turn, gain in enumerate(own) if row["advantage"] is not None else ():
            by_turn.setdefault(turn, []).append(gain)
    means = {turn: math.fsum(values) / len(values) for turn, values in by_turn.items()}
    return [
        None if row["advantage"] is None or row["turns"] is None
        else [row["advantage"] + gain - means[turn] for turn, gain in enumerate(own)]
        for row, own in zip(rows, gains, strict=True)
    ]  # fmt: skip


RULES: dict[TurnCredit, Rule] = {
    "last": lambda rows: [_each(row, lambda turn, n: float(turn == n - 1)) for row in rows],
    "discounted": lambda rows: [_each(row, lambda turn, n: DISCOUNT ** (n - 1 - turn)) for row in rows],
    "per_turn": per_turn,
}
"""By the value of the setting `turn_credit`; with `trajectory` each turn has the completion's own advantage."""


def with_turn_advantages(group: pl.DataFrame, credit: TurnCredit) -> pl.DataFrame:
    """Adds `turn_advantages` to a graded group (ROLLOUT_SCHEMA) with its advantages."""
    rows = group.select("advantage", "turns", "verdict").to_dicts()
    column = pl.Series("turn_advantages", RULES[credit](rows), dtype=ROLLOUT_SCHEMA["turn_advantages"])
    return group.with_columns(column)


def _each(row: dict[str, Any], weight: Callable[[int, int], float]) -> list[float] | None:
    if row["advantage"] is None or row["turns"] is None:
        return None
    n = len(row["turns"])
    return [row["advantage"] * weight(turn, n) for turn in range(n)]


def _gains(row: dict[str, Any]) -> list[float]:
    checks = [turn["check"] for turn in row["turns"] or ()]
    verdicts = [*checks[:-1], row["verdict"]]
    first = next((turn for turn, verdict in enumerate(verdicts) if verdict == Verdict.PASSED), None)
    return [float(turn == first) for turn in range(len(checks))]
