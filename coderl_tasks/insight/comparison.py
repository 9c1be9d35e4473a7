"""Recorded evaluations, overall and by split, and two of them side by side, paired by problem: numbers and tables."""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """Pass@1 `before` and `after` on `n` shared problems; the 95% interval is that of the paired `difference`.
    `changed` says how many problems did better and worse."""

    n: int
    before: float
    after: float
    difference: float
    ci_low: float
    ci_high: float
    changed: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The evaluations `before` and `after`, and their paired difference over all shared problems and by split.

    `pairs` has one row per problem: split, problem_id, before, after (the share of its completions that passed).
    `sides` says what was evaluated before and after, and how; `warning` what differs besides the policies, None if
    nothing.
    """

    before: EvalRecord
    after: EvalRecord
    overall: PairedPassAt1
    by_split: dict[str, PairedPassAt1]
    pairs: pl.DataFrame
    sides: tuple[str, str]
    warning: str | None

    @property
    def gained(self) -> int:
        """Problems that did better after."""
        return int(self.overall.changed["gained"])

    @property
    def lost(self) -> int:
        """Problems that did worse after."""
        return int(self.overall.changed["lost"])


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
        before=before,
        after=after,
        overall=_paired(pairs, _recorded(before, after)),
        by_split={split: _paired(pairs.filter(pl.col("split") == split)) for split in splits},
        pairs=pairs,
        sides=(side_text(one), side_text(other)),
        warning=unlike(one, other, pairs.height),
    )


def comparison_table(comparison: Comparison, weak: Collection[str] = ()) -> Table[tuple[str, PairedPassAt1]]:
    """Overall and by split, each evaluation's own Pass@1 and the paired difference; splits in `weak` have a star."""
    before, after = comparison.before, comparison.after
    return Table(
        (
            Column("split", lambda row: row[0] + ("*" if row[0] in weak else ""), style="name"),
            Column("problems", lambda row: row[1].n, ",", "num", short="n"),
            Column(before.name, lambda row: _estimate(_share(before, row[0])), "", "num", "console html", "before"),
            Column(after.name, lambda row: _estimate(_share(after, row[0])), "", "num", "console html", "after"),
            Column(
                "points, paired",
                lambda row: Estimate(row[1].difference, row[1].ci_low, row[1].ci_high, signed=True),
                style="num",
                short="paired difference",
                interval="paired 95% interval",
            ),
        ),
        list({"all": comparison.overall, **comparison.by_split}.items()),
        "stacked",
    )


def compared_lines(sides: Sequence[Sequence[EvalRecord]]) -> list[str]:
    """What is to be said of one side or two, each the evaluations of one configuration's seeds: every one's Pass@1,
    the difference problem by problem, and with several seeds the mean over them and how far apart they are.

    Raises DataError where the evaluations have no problem in common, or where sides have different numbers of seeds.
    """
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
    after = [_rollouts(record) for record in sides[-1]]
    if len(sides) == 2:
        found = over_seeds(after, [_rollouts(record) for record in sides[0]])
        what, sign, lowest = "B - A, seed by seed", "+", -1.0
    else:
        found = over_seeds(after)
        what, sign, lowest = "Pass@1", "", 0.0
    mean, *ends = (f"{100 * min(1.0, max(lowest, value)):{sign}.1f}" for value in found.mean)
    each = " ".join(f"{100 * value:{sign}.1f}" for value in found.by_seed)
    lines.append(
        f"{what}: {each}; mean {mean} [{', '.join(ends)}] for other seeds and "
        f"problems, standard deviation between seeds {100 * found.spread:.1f}, on {found.n} problems"
    )
    return lines


def splits_table(record: EvalRecord) -> Table[tuple[str, Mapping[str, Any]]]:
    """Pass@1 of one evaluation, overall and by split."""
    return Table(
        (
            Column("split", lambda row: row[0]),
            Column("problems", lambda row: row[1]["n"], ",", "num"),
            Column("Pass@1", lambda row: _estimate(row[1]), style="num", interval="95% interval"),
        ),
        [(split, share) for split in ("all", *record.summary.get("by_split", {})) if (share := _share(record, split))],
    )


def _share(record: EvalRecord, split: str) -> Mapping[str, Any] | None:
    """What the summary says of a split, or of all."""
    return record.summary if split == "all" else record.summary.get("by_split", {}).get(split)


def _estimate(share: Mapping[str, Any] | None) -> Estimate | None:
    return None if share is None else Estimate(share["pass_at_1"], share["ci_low"], share["ci_high"])


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
    return PairedPassAt1(n, before, after, *(recorded or paired_difference(pairs)), changed(pairs))
