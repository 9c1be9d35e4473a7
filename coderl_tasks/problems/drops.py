"""What is left out of a data set and why: every dropped row is kept as a record, so that kept + dropped = read."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import polars as pl

from coderl_tasks.problems.problem import Problem
from coderl_tasks.untrusted_text import printable

DROPPED_SCHEMA: dict[str, pl.DataType] = {
    "stage": pl.String(),
    "reason": pl.String(),
    "detail": pl.String(),
    "problem_id": pl.String(),
    "split": pl.String(),
    "source_row": pl.Int64(),
    "statement": pl.String(),
}
"""`problem_id` and `statement` are null for a row that never became a problem."""

DETAIL_CHARS = 300


class RowDropped(Exception):
    """A raw row that cannot be used. `reason` is a short fixed name to count by, `detail` one line for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = printable(" ".join(detail[: 2 * DETAIL_CHARS].split()))[:DETAIL_CHARS]


@dataclass(frozen=True, slots=True)
class Drop:
    """One dropped row. `stage` is parse, dedup, prompt, profile, band, ..."""

    stage: str
    reason: str
    detail: str
    problem_id: str | None
    split: str
    source_row: int
    statement: str | None = None

    @classmethod
    def of(cls, problem: Problem, stage: str, reason: str, detail: str = "") -> "Drop":
        place = (problem.problem_id, problem.split, problem.source_row, problem.statement)
        return cls(stage, reason, detail, *place)


def dropped_frame(drops: Iterable[Drop]) -> pl.DataFrame:
    return pl.DataFrame([asdict(drop) for drop in drops], schema=DROPPED_SCHEMA)


def require_all_rows(kept: int, dropped: pl.DataFrame, read: int) -> None:
    """Raise ValueError unless every row that was read is kept or dropped."""
    if kept + dropped.height != read:
        raise ValueError(f"kept {kept} + dropped {dropped.height} is not the {read} rows read")


def count_drops(dropped: pl.DataFrame) -> dict[str, int]:
    """Rows of a frame of `DROPPED_SCHEMA` by "stage/reason", sorted by name."""
    counts = dropped.group_by("stage", "reason").len().sort("stage", "reason")
    return {f"{stage}/{reason}": count for stage, reason, count in counts.iter_rows()}
