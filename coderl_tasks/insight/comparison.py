"""Two recorded evaluations side by side, paired by problem, overall and by split."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.evaluation.paired import paired_difference, paired_outcomes, side_text, unlike
from coderl_tasks.insight.record import EvalRecord
from coderl_tasks.settings import HUB_DATASET

WEAK_SPLITS = {"codeforces": "DeepCoder's rows carry the public samples only, so a pass there is weak evidence"}
"""Splits of the hub's data set whose passes prove less, with the reason."""

COLUMNS = ("problem_id", "split", "correctness_score")


def weak_splits(splits: Iterable[str], dataset: str) -> dict[str, str]:
    """Those of `splits` whose passes prove less, with the reason: of the hub's data set, or a copy under its name."""
    if Path(dataset).name != Path(HUB_DATASET).name:
        return {}
    return {split: WEAK_SPLITS[split] for split in splits if split in WEAK_SPLITS}


@dataclass(frozen=True, slots=True)
class PairedPassAt1:
    """Pass@1 `before` and `after` on `n` shared problems; the 95% interval is that of the paired `difference`."""

    n: int
    before: float
    after: float
    difference: float
    ci_low: float
    ci_high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired difference over all shared problems and by split.

    `pairs` has a row per problem: split, problem_id, before, after (the share of its completions that passed). `sides`
    says what was evaluated before and after, and how; `warning` what differs besides the policies, None if nothing.
    """

    overall: PairedPassAt1
    by_split: dict[str, PairedPassAt1]
    pairs: pl.DataFrame
    sides: tuple[str, str]
    warning: str | None

    @property
    def gained(self) -> int:
        """Problems that did better after."""
        return int((self.pairs["after"] > self.pairs["before"]).sum())

    @property
    def lost(self) -> int:
        """Problems that did worse after."""
        return int((self.pairs["after"] < self.pairs["before"]).sum())


def compare_evals(before: EvalRecord | None, after: EvalRecord | None) -> Comparison | None:
    """Compares two evaluations on the problems graded in both; None if one is missing or they share no problem.

    The overall interval is the one in the later summary where that compares to `before`.
    """
    if before is None or after is None:
        return None
    pairs = paired_outcomes(_rollouts(before), _rollouts(after))
    if pairs.is_empty():
        return None
    splits = pairs["split"].unique(maintain_order=True)
    one, other = (record.summary | {"step": record.step} for record in (before, after))
    return Comparison(
        overall=_paired(pairs, _recorded(before, after)),
        by_split={split: _paired(pairs.filter(pl.col("split") == split)) for split in splits},
        pairs=pairs,
        sides=(side_text(one), side_text(other)),
        warning=unlike(one, other, pairs.height),
    )


def _rollouts(record: EvalRecord) -> pl.DataFrame:
    if record.rollouts is None:
        raise DataError(f"evaluation {record.name} has no rollouts.parquet")
    return pl.read_parquet(record.rollouts, columns=list(COLUMNS))


def _recorded(before: EvalRecord, after: EvalRecord) -> tuple[float, float, float] | None:
    """The difference and interval that the later summary holds, if they are against `before`."""
    compare = after.summary.get("compare")
    if not compare or compare.get("to") != before.name:
        return None
    return compare["difference"], compare["ci_low"], compare["ci_high"]


def _paired(pairs: pl.DataFrame, recorded: tuple[float, float, float] | None = None) -> PairedPassAt1:
    n = len(pairs)
    before, after = sum(pairs["before"]) / n, sum(pairs["after"]) / n
    return PairedPassAt1(n, before, after, *(recorded or paired_difference(pairs)))
