"""What people see of a curation: what each stage dropped and left, what sampling cost, what the pool is made of.

First the numbers, then the tables of them, then the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from coderl_tasks.insight import figure
from coderl_tasks.insight.figure import Plot, add_legend, draw_panels, prepare, short_name
from coderl_tasks.insight.record import DIFFICULTIES, STAGES, CurationRecord
from coderl_tasks.insight.tables import Column, Noted, Table

EXAMPLES = 10
FIXED_SAMPLES = 16
FEW_SAMPLES = 2
"""So few samples tell that a problem can teach (one passes, one fails), and hardly its pass rate."""
ALL = "all"


DIFFICULTY_COLOURS = {"hard": figure.ROSE, "medium": figure.ORANGE, "easy": figure.TEAL}
FEW_ALPHA = 0.45


@dataclass(frozen=True, slots=True)
class Example:
    """One problem: its name (or its row, if it never became one), a line that says why it is here, its statement."""

    name: str
    split: str
    detail: str
    statement: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why `dropped` problems were dropped at a stage, with at most EXAMPLES of them."""

    stage: str
    reason: str
    dropped: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is `left` after a stage that dropped some; the first row, `read`, is all."""

    stage: str
    dropped: int
    left: int
    reasons: tuple[Reason, ...] = ()


def funnel(curation: CurationRecord) -> list[Remaining]:
    """What is left after each stage that dropped any, in order, from the rows read to the pool."""
    left = len(curation.pool) + len(curation.dropped)
    rows = [Remaining("read", 0, left)]
    for stage, part in _parts(curation.dropped, "stage", STAGES):
        left -= len(part)
        reasons = [Reason(stage, name, len(rest), examples(rest)) for name, rest in _parts(part, "reason")]
        rows.append(Remaining(stage, len(part), left, tuple(sorted(reasons, key=lambda reason: -reason.dropped))))
    return rows


def suspects(curation: CurationRecord) -> pl.DataFrame:
    """The problems that may have several right answers: problem_id, split, source_row, detail, statement, in_pool."""
    columns = ["problem_id", "source_row", "statement"]
    if not len(curation.solutions):
        return pl.DataFrame()
    known = [
        frame.select(columns).with_columns(in_pool=pl.lit(inside))
        for frame, inside in ((curation.pool, True), (curation.dropped, False))
        if len(frame)
    ]
    flagged = curation.solutions.filter("multi_answer_suspect").select("problem_id", "split", detail="suspicion")
    # A duplicate was dropped under the name of the problem that stayed.
    known_once = pl.concat(known).unique("problem_id", keep="first", maintain_order=True)
    return flagged.join(known_once, on="problem_id", how="inner", maintain_order="left")


def examples(rows: pl.DataFrame, limit: int = EXAMPLES) -> tuple[Example, ...]:
    """The first `limit` of rows that have `problem_id`, `split`, `source_row`, `detail` and `statement`."""
    return tuple(
        Example(
            name=row["problem_id"] or f"row {row['source_row']}",
            split=row["split"],
            detail=row["detail"] or "",
            statement=row["statement"] or "",
        )
        for row in rows.head(limit).iter_rows(named=True)
    )


def _parts(frame: pl.DataFrame, column: str, order: Sequence[str] = ()) -> list[tuple[str, pl.DataFrame]]:
    """The rows by their value in `column`: those of `order` first, others as they come."""
    if not len(frame):
        return []
    parts = {str(key[0]): part for key, part in frame.group_by([column], maintain_order=True)}
    known = [name for name in order if name in parts]
    return [(name, parts[name]) for name in [*known, *(name for name in parts if name not in known)]]


@dataclass(frozen=True, slots=True)
class MakeUp:
    """Problems of a split, or of all, in the pool: `counts` by difficulty, in the order of DIFFICULTIES.

    `few` of each have FEW_SAMPLES or fewer.
    """

    split: str
    counts: tuple[int, ...]
    few: tuple[int, ...]
    problems: int
    pass_rate: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """What profiling a split, or all, took: graded completions, against a fixed number per problem, and tokens sampled.

    `cost` is in the currency of the prices given, None where none was.
    """

    split: str
    problems: int
    samples: int
    tokens: int
    cost: float | None

    @property
    def fixed(self) -> int:
        """Completions at FIXED_SAMPLES per problem."""
        return FIXED_SAMPLES * self.problems

    @property
    def share(self) -> float:
        """Samples as a share of those."""
        return self.samples / self.fixed


def make_up(pool: pl.DataFrame) -> list[MakeUp]:
    """The pool by split, with a last row for all; empty for an empty pool."""
    return [
        MakeUp(
            split,
            tuple(part.filter(difficulty=name).height for name in DIFFICULTIES),
            tuple(few_samples(part).filter(difficulty=name).height for name in DIFFICULTIES),
            len(part),
            part["pass_rate"].mean(),  # type: ignore[arg-type]  # polars: any scalar
        )
        for split, part in _by_split(pool)
    ]


def few_samples(problems: pl.DataFrame) -> pl.DataFrame:
    """Those of `problems` (of a pool or profile) with FEW_SAMPLES or fewer."""
    return problems.filter(pl.col("n_samples") <= FEW_SAMPLES)


def few_at_half(profile: pl.DataFrame) -> str | None:
    """Why so many problems stand at a pass rate of 0.5, in two sentences; None if none of few samples does."""
    if not len(profile):
        return None
    at_half = profile.filter(pl.col("pass_rate") == 0.5)
    few = few_samples(at_half)
    if not len(few):
        return None
    low, high = few["ci_low"][0], few["ci_high"][0]
    return (
        f"{len(few)} of the {len(at_half)} problems at exactly 0.5 had {FEW_SAMPLES} samples, of which one passed: "
        f"enough to keep a problem, too few to know its pass rate (95% interval {low:.2f} to {high:.2f}). "
        "Their label, medium, is as uncertain."
    )


def spending(profile: pl.DataFrame) -> list[Spending]:
    """What the profile took by split, with a last row for all; empty without a profile."""
    return [
        Spending(
            split,
            len(part),
            int(part["n_samples"].sum()),
            _tokens(part),
            float(part["cost"].sum()) if "cost" in part.columns and part["cost"].count() else None,
        )
        for split, part in _by_split(profile)
    ]


def _tokens(profile: pl.DataFrame) -> int:
    if "completion_tokens_spent" in profile.columns:
        return int(profile["completion_tokens_spent"].sum())
    return int((profile["n_samples"] * profile["mean_completion_tokens"]).sum())


def _by_split(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    if not len(frame):
        return []
    return [*((split, frame.filter(split=split)) for split in sorted(frame["split"].unique())), (ALL, frame)]


def _left_after(row: tuple[Remaining, Reason]) -> str:
    stage, reason = row
    return f"{stage.left:,}" if reason is stage.reasons[-1] else ""


def drops_table(rows: Sequence[Remaining]) -> Table[tuple[Remaining, Reason]]:
    """What was dropped at each stage and why; a stage is named at its first reason, what it left at its last."""
    return Table(
        (
            Column("stage", lambda row: row[0].stage if row[1] is row[0].reasons[0] else ""),
            Column("reason", lambda row: row[1].reason),
            Column("dropped", lambda row: row[1].dropped, ",", "num"),
            Column("left after the stage", _left_after, style="num"),
        ),
        [(row, reason) for row in rows for reason in row.reasons],
    )


def spending_table(rows: Sequence[Spending]) -> Table[Spending]:
    """What the profile took, with its cost where prices were given."""
    cost: tuple[Column[Spending], ...] = (Column("cost", lambda row: row.cost or 0.0, ".2f", "num"),)
    return Table(
        (
            Column("split", lambda row: row.split),
            Column("problems", lambda row: row.problems, ",", "num"),
            Column("samples", lambda row: row.samples, ",", "num"),
            Column(f"fixed {FIXED_SAMPLES}", lambda row: row.fixed, ",", "num"),
            Column("share", lambda row: row.share, ".0%", "num"),
            Column("tokens", lambda row: row.tokens, ",", "num"),
            *(cost if rows and rows[-1].cost is not None else ()),
        ),
        rows,
        "dense",
    )


def make_up_table(rows: Sequence[MakeUp]) -> Table[MakeUp]:
    """The pool by split and difficulty; labels from few samples are noted."""
    by_difficulty: list[Column[MakeUp]] = [
        Column(name, lambda row, place=place: Noted(row.counts[place], row.few[place]), ",", "num")  # type: ignore[misc]
        for place, name in enumerate(DIFFICULTIES)
    ]
    return Table(
        (
            Column("split", lambda row: row.split),
            *by_difficulty,
            Column("all", lambda row: row.problems, ",", "num"),
            Column("mean pass rate", lambda row: row.pass_rate, ".1%", "num", media="html"),
        ),
        rows,
        "dense",
    )


def references_table(solutions: pl.DataFrame) -> Table[tuple[str, int]]:
    """Problems by what their own solutions showed, most first."""
    counts = solutions.group_by("status").len().sort(["len", "status"], descending=[True, False])
    return Table(
        (
            Column("what the problem's own solutions show", lambda row: row[0]),
            Column("problems", lambda row: row[1], ",", "num"),
        ),
        list(counts.iter_rows()),
    )


def pass_rate_plot(profile: pl.DataFrame, band: tuple[float, float] | None = None) -> Plot:
    """How many profiled problems have which pass rate, stacked by split; the training band is shaded."""
    alt = f"Histogram of the pass rates of {len(profile)} profiled problems."
    return draw_panels([partial(_pass_rates, profile=profile, band=band)], 1, (9.4, 2.9), alt)


def _pass_rates(axes: Axes, profile: pl.DataFrame, band: tuple[float, float] | None) -> None:
    prepare(axes, "Pass rate of the base model")
    splits = sorted(profile["split"].unique()) if len(profile) else []
    bottom = np.zeros(12)
    for split, colour in zip(splits, figure.SERIES, strict=False):
        rates = profile.filter(pl.col("split") == split)["pass_rate"].drop_nulls().to_numpy()
        counts = pass_rate_counts(rates)
        axes.bar(range(12), counts, bottom=bottom, width=0.86, color=colour, label=short_name(split))
        bottom += counts
    if band is not None:
        axes.axvspan(0.5 + 10 * band[0], 0.5 + 10 * band[1], color=figure.BLUE, alpha=0.07, linewidth=0, zorder=0)
    labels = ["0", *[f"{k / 10:.1f}–{(k + 1) / 10:.1f}" for k in range(10)], "1"]
    axes.set_xticks(range(12), labels)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.set_ylabel("problems")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    if splits:
        add_legend(axes, columns=4)


def pass_rate_counts(rates: np.ndarray) -> np.ndarray:
    """Counts in 12 bins: exactly 0, ten of a tenth each in between, exactly 1. The two ends mean "no signal"."""
    inner = rates[(rates > 0) & (rates < 1)]
    tenths = np.minimum((inner * 10 + 1e-9).astype(int), 9)
    return np.concatenate([[np.sum(rates == 0)], np.bincount(tenths, minlength=10), [np.sum(rates == 1)]])


def funnel_plot(rows: Sequence[Remaining]) -> Plot:
    """What is left after each stage, from the rows read to the pool, with what the stage dropped."""
    alt = f"Problems left after each stage: {', '.join(f'{row.stage} {row.left}' for row in rows)}."
    return draw_panels([partial(_funnel, rows=rows)], 1, (9.4, 0.52 + 0.27 * len(rows)), alt, figure.LABELS, bottom=0.1)


def _funnel(axes: Axes, rows: Sequence[Remaining]) -> None:
    prepare(axes, "Problems left after each stage")
    axes.grid(visible=False)
    places = range(len(rows))
    axes.barh(places, [row.left for row in rows], height=0.68, color=figure.BLUE)
    axes.barh(
        places,
        [row.dropped for row in rows],
        left=[row.left for row in rows],
        height=0.68,
        color=figure.ROSE,
        alpha=0.45,
    )
    for place, row in enumerate(rows):
        text = f"{row.left:,}" + (f"  −{row.dropped:,}" if row.dropped else "")
        axes.annotate(
            text, (row.left + row.dropped, place), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(places, [row.stage for row in rows])
    axes.tick_params(axis="y", labelcolor=figure.INK)
    axes.set_xlim(0, 1.13 * max(1, rows[0].left))
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def samples_plot(profile: pl.DataFrame) -> Plot:
    """How many problems took how many graded completions, stacked by split."""
    alt = f"Histogram of the samples spent on {len(profile)} profiled problems."
    return draw_panels([partial(_samples, profile=profile)], 1, (figure.WIDTH, 2.4), alt)


def _samples(axes: Axes, profile: pl.DataFrame) -> None:
    prepare(axes, "Samples")
    numbers = sorted(profile["n_samples"].unique())
    bottom = np.zeros(len(numbers))
    for split, colour in zip(sorted(profile["split"].unique()), figure.SERIES, strict=False):
        part = profile.filter(pl.col("split") == split)
        counts = np.array([part.filter(pl.col("n_samples") == n).height for n in numbers])
        axes.bar(range(len(numbers)), counts, bottom=bottom, width=0.7, color=colour, label=short_name(split))
        bottom += counts
    axes.set_xticks(range(len(numbers)), [str(n) for n in numbers])
    axes.set_xlabel("samples per problem")
    axes.set_ylabel("problems")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_legend(axes)


def difficulty_plot(pool: pl.DataFrame) -> Plot:
    """The pool's problems by split, stacked by difficulty; lighter where the label comes from few samples."""
    alt = f"The pool's {len(pool)} problems by split and difficulty."
    splits = pool["split"].n_unique() if len(pool) else 1
    return draw_panels(
        [partial(_difficulty, pool=pool)], 1, (figure.WIDTH, 1.2 + 0.4 * splits), alt, left=figure.LABELS
    )


def _difficulty(axes: Axes, pool: pl.DataFrame) -> None:
    prepare(axes, "Pool")
    axes.grid(axis="x", color=figure.RULE)
    axes.grid(visible=False, axis="y")
    splits = sorted(pool["split"].unique(), reverse=True) if len(pool) else []
    left = np.zeros(len(splits))
    parts = {split: pool.filter(split=split) for split in splits}
    some_few = False
    for difficulty in DIFFICULTIES:
        colour = DIFFICULTY_COLOURS[difficulty]
        labelled = [part.filter(difficulty=difficulty) for part in parts.values()]
        few = np.array([few_samples(part).height for part in labelled])
        more = np.array([part.height for part in labelled]) - few
        axes.barh(range(len(splits)), more, left=left, height=0.6, color=colour, label=difficulty)
        axes.barh(range(len(splits)), few, left=left + more, height=0.6, color=colour, alpha=FEW_ALPHA)
        left = left + more + few
        some_few = some_few or bool(few.any())
    if some_few:
        axes.barh(0, 0, color=figure.GREY, alpha=FEW_ALPHA, label=f"≤ {FEW_SAMPLES} samples")
    axes.set_yticks(range(len(splits)), [short_name(split) for split in splits])
    axes.tick_params(axis="y", labelcolor=figure.INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if splits:
        add_legend(axes, columns=4)
