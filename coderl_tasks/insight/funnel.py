"""What a curation dropped, as people read it: what each stage left, and examples of each reason."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from coderl_tasks.insight.record import STAGES, CurationRecord

EXAMPLES = 10


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
