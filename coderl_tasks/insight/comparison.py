"""Recorded evaluations, overall and by split, and two of them side by side, paired by problem: numbers and tables."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.evaluation.paired import (
    changed,
    changed_text,
    over_seeds,
    paired_difference,
    paired_outcomes,
    side_text,
    unlike,
)
from coderl_tasks.insight.record import EvalRecord
from coderl_tasks.insight.tables import Column, Estimate, Table
from coderl_tasks.settings import HUB_DATASET


def weak_splits(splits: Collection[str], dataset: str) -> dict[str, str]:
    """Those of `splits` whose passes prove less, with the reason: of the hub's data set, or a copy under its name."""
    if "codeforces" not in splits or Path(dataset).name != Path(HUB_DATASET).name:
        return {}
    return {"codeforces": "DeepCoder's rows carry the public samples only, so a pass there is weak evidence"}


@dataclass(frozen=True, slots=True)
class PairedPassAt1:
    """Pass@1 on `n` shared problems; the 95% interval is that of the paired `difference`, `changed` as in `paired`."""

    n: int
    before: float
    after: float
    difference: float
    ci_low: float
    ci_high: float
    changed: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations and their paired difference. `pairs` has one row per shared problem: split, problem_id, before,
    after (the share of its completions that passed). `warning` says what differs besides the policies."""

    before: EvalRecord
    after: EvalRecord
    overall: PairedPassAt1
    by_split: dict[str, PairedPassAt1]
    pairs: pl.DataFrame
    sides: tuple[str, str]
    warning: str | None

    @property
    def gained(self) -> int:
        return int(self.overall.changed["gained"])

    @property
    def lost(self) -> int:
        return int(self.overall.changed["lost"])


def compare_evals(before: EvalRecord | None, after: EvalRecord | None) -> Comparison | None:
    """Compares two evaluations on the problems graded in both; None if one is missing or they share no problem. The
    overall interval is the one in the later summary where that compares to `before`."""
    if before is None or after is None:
        return None
    pairs = paired_outcomes(_rollouts(before), _rollouts(after))
    if pairs.is_empty():
        return None
    splits = pairs["split"].unique(maintain_order=True)
    one, other = (record.summary | {"step": record.step} for record in (before, after))
    compare = after.summary.get("compare") or {}
    is_recorded = compare.get("to") == before.name
    recorded = (compare["difference"], compare["ci_low"], compare["ci_high"]) if is_recorded else None
    by_split = {split: _paired(pairs.filter(split=split)) for split in splits}
    sides = (side_text(one), side_text(other))
    return Comparison(before, after, _paired(pairs, recorded), by_split, pairs, sides, unlike(one, other, pairs.height))


def comparison_table(comparison: Comparison, weak: Collection[str] = ()) -> Table[tuple[str, PairedPassAt1]]:
    """Overall and by split, each evaluation's own Pass@1 and the paired difference; splits in `weak` have a star."""
    before, after = comparison.before, comparison.after

    def paired(row: tuple[str, PairedPassAt1]) -> Estimate:
        return Estimate(row[1].difference, row[1].ci_low, row[1].ci_high, signed=True)

    return Table(
        (
            Column("split", lambda row: row[0] + ("*" if row[0] in weak else ""), style="name"),
            Column("problems", lambda row: row[1].n, ",", "num", short="n"),
            Column(before.name, lambda row: _estimate(before, row[0]), "", "num", "console html", "before"),
            Column(after.name, lambda row: _estimate(after, row[0]), "", "num", "console html", "after"),
            Column("points, paired", paired, style="num", short="paired difference", interval="paired 95% interval"),
        ),
        list({"all": comparison.overall, **comparison.by_split}.items()),
        "stacked",
    )


def compared_lines(sides: Sequence[Sequence[EvalRecord]]) -> list[str]:
    """The evaluations of one side or two, and their comparison, as lines. A side has one evaluation per seed of one
    configuration. Raises DataError if the sides share no problem or have different numbers of seeds."""
    lines = []
    for number, records in enumerate(sides):
        for record in records:
            low, high = record.interval
            letter = chr(ord("A") + number) if len(sides) > 1 else ""
            named = side_text(record.summary | {"step": record.step})
            lines.append(f"{letter:<1} {record.name}: Pass@1 {record.pass_at_1:.1%} [{low:.1%}, {high:.1%}]  {named}")
    if len({len(records) for records in sides}) > 1:
        raise DataError("the two sides have different numbers of seeds: name as many of each, in the same order")
    if len(sides) == 2 and len(sides[0]) == 1:
        comparison = compare_evals(sides[0][0], sides[1][0])
        if comparison is None:
            raise DataError("the two evaluations share no graded problem")
        for split, paired in {"all": comparison.overall, **comparison.by_split}.items():
            interval = f"[{100 * paired.ci_low:+.1f}, {100 * paired.ci_high:+.1f}]"
            change = f"{100 * paired.difference:+.1f} points {interval}{changed_text(paired.changed)}"
            lines.append(f"B - A, {split}: {change} on {paired.n} problems")
        return [*lines, *([f"warning: {comparison.warning}"] if comparison.warning else [])]
    *before, after = ([_rollouts(record) for record in side] for side in sides)
    found = over_seeds(after, *before)
    what, sign, lowest = ("B - A, seed by seed", "+", -1.0) if before else ("Pass@1", "", 0.0)
    mean, *ends = (f"{100 * min(1.0, max(lowest, value)):{sign}.1f}" for value in found.mean)
    each = " ".join(f"{100 * value:{sign}.1f}" for value in found.by_seed)
    lines.append(
        f"{what}: {each}; mean {mean} [{', '.join(ends)}] for other seeds and "
        f"problems, standard deviation between seeds {100 * found.spread:.1f}, on {found.n} problems"
    )
    return lines


def splits_table(record: EvalRecord) -> Table[tuple[str, Mapping[str, Any]]]:
    return Table(
        (
            Column("split", lambda row: row[0]),
            Column("problems", lambda row: row[1]["n"], ",", "num"),
            Column("Pass@1", lambda row: _estimate(record, row[0]), style="num", interval="95% interval"),
        ),
        [(split, share) for split, share in _shares(record).items() if share],
    )


def _shares(record: EvalRecord) -> dict[str, Mapping[str, Any]]:
    return {"all": record.summary, **record.summary.get("by_split", {})}


def _estimate(record: EvalRecord, split: str) -> Estimate | None:
    share = _shares(record).get(split)
    return None if share is None else Estimate(share["pass_at_1"], share["ci_low"], share["ci_high"])


def _rollouts(record: EvalRecord) -> pl.DataFrame:
    if record.rollouts is None:
        raise DataError(f"evaluation {record.name} has no rollouts.parquet")
    return pl.read_parquet(record.rollouts, columns=["problem_id", "split", "correctness_score"])


def _paired(pairs: pl.DataFrame, recorded: tuple[float, float, float] | None = None) -> PairedPassAt1:
    n = len(pairs)
    before, after = sum(pairs["before"]) / n, sum(pairs["after"]) / n
    return PairedPassAt1(n, before, after, *(recorded or paired_difference(pairs)), changed(pairs))
