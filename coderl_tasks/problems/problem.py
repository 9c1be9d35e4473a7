"""The normalised problem: what everything after loading works with, and its parquet schema."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import polars as pl

Kind = Literal["stdin", "call", "answer"]
"""How a completion is judged: as a program on its standard input, as a function's value, or as an answer, whose ground
truth is the only test's `expected`."""

TRAIN_SPLITS = ("primeintellect", "taco", "lcbv5")
TEST_SPLITS = ("codeforces", "lcbv5")


@dataclass(frozen=True, slots=True)
class Test:
    """One test. For `call` problems `input` is a JSON array of arguments and `expected` a JSON value."""

    __test__: ClassVar[bool] = False  # not a test class for pytest

    input: str
    expected: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with the tests it is graded on.

    `tests` are a tuple, or of a pool's problem in a run `StoredTests`, which read them from the pool's file.
    `problem_id` is a stable hash of the content (or the raw row's own id); `split` is the data set's config name;
    `tests_total` counts the tests kept, `tests_original` those before trimming; `time_limit_s` is CPU seconds per
    test, None where the data names none; `source_row` is the row number in the raw split.
    """

    problem_id: str
    split: str
    statement: str
    starter_code: str
    kind: Kind
    entry_point: str
    tests: Sequence[Test]
    tests_total: int
    tests_original: int
    time_limit_s: float | None
    solutions: tuple[str, ...]
    source_row: int

    def whole(self) -> "Problem":
        """The problem with its tests in memory."""
        return self if isinstance(self.tests, tuple) else replace(self, tests=tuple(self.tests))

    def to_row(self) -> dict[str, Any]:
        """The problem as one row of `PROBLEM_SCHEMA`."""
        return {name: getattr(self, name) for name in _FIELDS} | {
            "tests": [{"input": test.input, "expected": test.expected} for test in self.tests],
            "solutions": list(self.solutions),
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Problem":
        """The problem in a row of `PROBLEM_SCHEMA`; further columns (a pool's) are ignored."""
        values = {name: row[name] for name in _FIELDS}
        values["tests"] = tuple(Test(test["input"], test["expected"]) for test in row["tests"])
        values["solutions"] = tuple(row["solutions"] or ())
        return cls(**values)


_FIELDS = tuple(field.name for field in fields(Problem))

PROBLEM_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": pl.String(),
    "split": pl.String(),
    "statement": pl.String(),
    "starter_code": pl.String(),
    "kind": pl.String(),
    "entry_point": pl.String(),
    "tests": pl.List(pl.Struct({"input": pl.String(), "expected": pl.String()})),
    "tests_total": pl.Int32(),
    "tests_original": pl.Int32(),
    "time_limit_s": pl.Float64(),
    "solutions": pl.List(pl.String()),
    "source_row": pl.Int64(),
}
"""Polars writes strings as parquet large_string, so tests of hundreds of megabytes do not overflow."""


def problems_frame(problems: list[Problem]) -> pl.DataFrame:
    """Problems as a frame of `PROBLEM_SCHEMA`, in order."""
    return pl.DataFrame([problem.to_row() for problem in problems], schema=PROBLEM_SCHEMA)


def problems_from_frame(frame: pl.DataFrame) -> list[Problem]:
    """The problems of a frame with (at least) the columns of `PROBLEM_SCHEMA`, in order."""
    return [Problem.from_row(row) for row in frame.iter_rows(named=True)]
