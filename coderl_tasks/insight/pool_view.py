"""What people see of a curation: what each stage dropped and left, what sampling cost, what the pool is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from coderl_tasks.insight.record import DIFFICULTIES, STAGES, CurationRecord
from coderl_tasks.insight.tables import Column, Noted, Table
from coderl_tasks.problems.profile_columns import TOLD

EXAMPLES = 10
FIXED_SAMPLES = 16
"""So few samples tell that a problem can teach (one passes, one fails), and hardly its pass rate."""


@dataclass(frozen=True, slots=True)
class Example:
    """One problem: its name (or its row, if it never became one), why it is here, its statement."""

    name: str
    split: str
    detail: str
    statement: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why `dropped` problems were dropped at a stage, with at most EXAMPLES of them."""

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
        reasons = [Reason(name, len(rest), examples(rest)) for name, rest in _parts(part, "reason")]
        rows.append(Remaining(stage, len(part), left, tuple(sorted(reasons, key=lambda reason: -reason.dropped))))
    return rows


def suspects(curation: CurationRecord) -> pl.DataFrame:
    """The problems that may have several right answers: problem_id, split, source_row, detail, statement, in_pool."""
    if not len(curation.solutions):
        return pl.DataFrame()
    known = [
        frame.select("problem_id", "source_row", "statement", in_pool=pl.lit(inside))
        for frame, inside in ((curation.pool, True), (curation.dropped, False))
        if len(frame)
    ]
    flagged = curation.solutions.filter("multi_answer_suspect").select("problem_id", "split", detail="suspicion")
    # A duplicate was dropped under the name of the problem that stayed.
    known_once = pl.concat(known).unique("problem_id", keep="first", maintain_order=True)
    return flagged.join(known_once, on="problem_id", how="inner", maintain_order="left")


def examples(rows: pl.DataFrame) -> tuple[Example, ...]:
    """The first EXAMPLES of rows that have `problem_id`, `split`, `source_row`, `detail` and `statement`."""
    columns = ("problem_id", "source_row", "split", "detail", "statement")
    return tuple(
        Example(problem_id or f"row {source_row}", split, detail or "", statement or "")
        for problem_id, source_row, split, detail, statement in rows.head(EXAMPLES).select(columns).iter_rows()
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
    """Problems of a split, or of all, in the pool: `counts` by difficulty, in the order of DIFFICULTIES. Of each `few`
    labels are expected to be wrong, by their probabilities."""

    split: str
    counts: tuple[int, ...]
    few: tuple[int, ...]
    problems: int
    pass_rate: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """What profiling a split, or all, took: graded completions, tokens sampled, and their cost if prices were given."""

    split: str
    problems: int
    samples: int
    tokens: int
    cost: float | None

    @property
    def share(self) -> float:
        """Samples as a share of FIXED_SAMPLES per problem."""
        return self.samples / (FIXED_SAMPLES * self.problems)


def make_up(pool: pl.DataFrame) -> list[MakeUp]:
    rows = []
    for split, part in _by_split(pool):
        labelled = [part.filter(difficulty=name) for name in DIFFICULTIES]
        doubts = [float((1 - each["difficulty_probability"].drop_nulls()).sum()) for each in labelled]
        rate: Any = part["pass_rate"].mean()  # polars: any scalar
        rows.append(MakeUp(split, tuple(map(len, labelled)), tuple(map(round, doubts)), len(part), rate))
    return rows


def is_profiled(pool: pl.DataFrame) -> bool:
    """Whether pass rates are known: with profile_mode=none they are null."""
    return "pass_rate" in pool.columns and bool(pool["pass_rate"].count())


NOTE_ON_LABELS = "In brackets: how many of these labels are expected to be wrong, by their probabilities."
NOTE_ON_RATES = (
    "The number of problems expected at each pass rate: a problem with few samples counts in part at each rate that it "
    "may have, by a prior learned from all of them."
)


def spending(profile: pl.DataFrame) -> list[Spending]:
    """What the profile took by split, with a last row for all; empty without a profile."""
    return [
        Spending(
            split,
            len(part),
            int(part["n_samples"].sum()) - (int(part[TOLD].sum()) if TOLD in part.columns else 0),
            int(part["completion_tokens_spent"].sum()),
            float(part["cost"].sum()) if part["cost"].count() else None,
        )
        for split, part in _by_split(profile)
    ]


def _by_split(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    return [*_parts(frame, "split", sorted(frame["split"].unique())), ("all", frame)] if len(frame) else []


def drops_table(rows: Sequence[Remaining]) -> Table[tuple[Remaining, Reason]]:
    """What was dropped at each stage and why; a stage is named at its first reason, what it left at its last."""
    return Table(
        (
            Column("stage", lambda row: row[0].stage if row[1] is row[0].reasons[0] else ""),
            Column("reason", lambda row: row[1].reason),
            Column("dropped", lambda row: row[1].dropped, ",", "num"),
            Column("left after the stage", lambda row: f"{row[0].left:,}" * (row[1] is row[0].reasons[-1]), "", "num"),
        ),
        [(row, reason) for row in rows for reason in row.reasons],
    )


def spending_table(rows: Sequence[Spending]) -> Table[Spending]:
    cost: tuple[Column[Spending], ...] = (Column("cost", lambda row: row.cost or 0.0, ".2f", "num"),)
    return Table(
        (
            Column("split", lambda row: row.split),
            Column("problems", lambda row: row.problems, ",", "num"),
            Column("samples", lambda row: row.samples, ",", "num"),
            Column(f"fixed {FIXED_SAMPLES}", lambda row: FIXED_SAMPLES * row.problems, ",", "num"),
            Column("share", lambda row: row.share, ".0%", "num"),
            Column("tokens", lambda row: row.tokens, ",", "num"),
            *(cost if rows and rows[-1].cost is not None else ()),
        ),
        rows,
        "dense",
    )


def make_up_table(rows: Sequence[MakeUp]) -> Table[MakeUp]:
    """The pool by split and, where that is known, difficulty and pass rate; labels in doubt are noted."""
    by_difficulty: list[Column[MakeUp]] = [
        Column(name, lambda row, place=place: Noted(row.counts[place], row.few[place]), ",", "num")  # type: ignore[misc]
        for place, name in enumerate(DIFFICULTIES)
    ]
    rate: Column[MakeUp] = Column("mean pass rate", lambda row: row.pass_rate, ".1%", "num", media="html")
    if all(row.pass_rate is None for row in rows):
        by_difficulty, rate = [], Column("pass rates", lambda row: "not profiled")
    split: Column[MakeUp] = Column("split", lambda row: row.split)
    return Table((split, *by_difficulty, Column("all", lambda row: row.problems, ",", "num"), rate), rows, "dense")


def references_table(solutions: pl.DataFrame) -> Table[tuple[str, int]]:
    """Problems by what their own solutions showed, most first."""
    counts = solutions.group_by("status").len().sort(["len", "status"], descending=[True, False])
    shown: Column[tuple[str, int]] = Column("what the problem's own solutions show", lambda row: row[0])
    return Table((shown, Column("problems", lambda row: row[1], ",", "num")), list(counts.iter_rows()))
