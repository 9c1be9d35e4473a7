"""How the advantage of a completion in several turns is shared out among its turns.

By the setting `turn_credit`, with A the completion's advantage:

    trajectory   A for each turn: what led to the last answer is reinforced with it
    last         A for the last turn, 0 for those before it
    discounted   DISCOUNT ** (turns that follow) * A (Baronio et al., "Kevin", discounts later turns' rewards so)
    per_turn     A + d - mean d, d being 1 for the turn whose answer first passes, else 0, and the mean over the group's
                 turns of that number (Zeng et al., "Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level
                 Credit Assignment": outcome and turn advantage, each relative to the group). Of the last answer the
                 tests decide, of those before it the statement's samples.
"""

import math
from typing import Any, Literal

import polars as pl

from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA

TurnCredit = Literal["trajectory", "last", "discounted", "per_turn"]
DISCOUNT = 0.4


def with_turn_advantages(group: pl.DataFrame, credit: TurnCredit) -> pl.DataFrame:
    """Adds `turn_advantages` to a graded group (ROLLOUT_SCHEMA) with its advantages, by a `credit` other than
    "trajectory"."""
    rows = group.select("advantage", "turns", "verdict").to_dicts()
    known = [row for row in rows if row["advantage"] is not None and row["turns"] is not None]
    by_turn: dict[int, list[float]] = {}  # per turn each completion's gain: 1 if its answer is the first that passes
    for row in known:
        verdicts = [*(turn["check"] for turn in row["turns"][:-1]), row["verdict"]]
        first = next((turn for turn, verdict in enumerate(verdicts) if verdict == Verdict.PASSED), None)
        row["gains"] = [float(turn == first) for turn in range(len(row["turns"]))]
        for turn, gain in enumerate(row["gains"]):
            by_turn.setdefault(turn, []).append(gain)
    means = {turn: math.fsum(gains) / len(gains) for turn, gains in by_turn.items()}

    def of_turns(row: dict[str, Any]) -> list[float]:
        advantage, n = row["advantage"], len(row["turns"])
        if credit == "last":
            return [advantage * float(turn == n - 1) for turn in range(n)]
        if credit == "discounted":
            return [advantage * DISCOUNT ** (n - 1 - turn) for turn in range(n)]
        if credit == "per_turn":
            return [advantage + gain - means[turn] for turn, gain in enumerate(row["gains"])]
        raise ValueError(f"turn_credit={credit} has no advantages per turn")

    column = [of_turns(row) if "gains" in row else None for row in rows]
    return group.with_columns(pl.Series("turn_advantages", column, dtype=ROLLOUT_SCHEMA["turn_advantages"]))
