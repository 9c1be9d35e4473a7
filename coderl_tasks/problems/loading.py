"""The one way to load problems: read a source, normalise its rows, drop what cannot be used and say why.

Which problems a policy is evaluated on, and so must not be trained on, is the evaluation side of the data:

| given                  | the evaluation side                                                            |
|------------------------|--------------------------------------------------------------------------------|
| `test_share=S`         | the share S of `dataset`'s train rows, by a hash of the problem's id           |
| `evaluation_dataset=D` | the test splits of D, or all of it where it is one file                        |
| neither                | the test splits of `dataset`; one file has none (`require_other_problems`)     |
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import polars as pl

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.problems.problem import Drop, Kind, Problem, RowDropped, dropped_frame, require_all_rows, trim_tests
from coderl_tasks.problems.raw_files import RawRow, Unread
from coderl_tasks.problems.raw_row import DATE_COLUMNS, answer_problem, problem_from_row, row_date, stored_problem
from coderl_tasks.problems.sources import Role, find_source, is_file, open_source
from coderl_tasks.settings import FlowSettings

ItemT = TypeVar("ItemT")
SIDES = ("dataset", "evaluation_dataset", "test_share")
"""The settings that say which data are trained on and which evaluated on."""
NO_EVALUATION = "none"
SAME_ID_OTHER_TESTS = "same_id_other_tests"
"""Why a row was dropped whose own id an earlier row has, with other tests."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """How rows become problems: `read` takes a row's values, `split` and `source_row`, and raises RowDropped; rows that
    are problems already, a pool's, have to be of one of `kinds`."""

    read: Callable[..., Problem]
    kinds: tuple[Kind, ...]


CODE_ROWS = RowReader(problem_from_row, ("stdin", "call", "assert"))


@dataclass(frozen=True, slots=True)
class Dates:
    """The days, both included, that rows have to be of; None is no bound."""

    since: date | None
    until: date | None

    def __str__(self) -> str:
        bounds = {"since": self.since, "until": self.until}
        return " ".join(f"{name}={day}" for name, day in bounds.items() if day is not None)

    def has(self, row: RawRow) -> bool:
        """Whether `row` is of one of these days, or unreadable. Raises DataError if it does not say of which day."""
        if not isinstance(row.values, Mapping):
            return True
        day = row_date(row.values)
        if day is None:
            raise DataError(
                f"{self}: row {row.source_row} of {row.split} has no date: rows need a column "
                f"{' or '.join(DATE_COLUMNS)} with YYYY-MM-DD, their own or in their metadata (DeepCoder's have none)"
            )
        return (self.since is None or self.since <= day) and (self.until is None or day <= self.until)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a source gave: `problems`, `dropped` (a frame of `DROPPED_SCHEMA`), and how many rows were read."""

    problems: list[Problem]
    dropped: pl.DataFrame
    read: int

    def __post_init__(self) -> None:
        require_all_rows(len(self.problems), self.dropped, self.read)

    @property
    def unusable(self) -> str:
        """A line about the rows that gave no problem, with the reason of the first; empty if all did."""
        if self.dropped.is_empty():
            return ""
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.dropped_by_reason().items())
        first = self.dropped.row(0, named=True)
        rows = f"{self.dropped.height} of {self.read} rows give no problem ({reasons}); row {first['source_row']}"
        return f"{rows}: {first['detail'] or first['reason']}"

    def dropped_by_reason(self) -> dict[str, int]:
        """Counts of the dropped rows by reason, most frequent first."""
        counts = self.dropped.group_by("reason").len().sort("len", "reason", descending=[True, False])
        return dict(counts.iter_rows())


def load_rows(source: str, splits: Sequence[str] | None = None, *, role: Role, limit: int = -1) -> Iterator[RawRow]:
    """The raw rows of `source` (see `sources.open_source`), split by split. With a `limit`, at most so many rows, taken
    in turn from the splits, so that each is represented; -1: all."""
    sources = [split_source.rows() for split_source in open_source(source, splits, role)]
    return chain.from_iterable(sources) if limit == -1 else islice(_in_turn(sources), limit)


def load_problems(
    source: str,
    splits: Sequence[str] | None = None,
    *,
    role: Role,
    limit: int = -1,
    max_tests: int = -1,
    rows: RowReader = CODE_ROWS,
    dates: Dates | None = None,
    transform: Callable[[Problem], Problem] | None = None,
) -> LoadResult:
    """The problems of `source`: raw rows normalised, or already normalised ones (a pool) as they are.

    `role` is the side of a data set to read, `rows` its row format; `limit` counts rows read (-1: all); each
    problem is cut to `max_tests` (see `trim_tests`). A row with an earlier row's identity is dropped. Rows outside
    `dates` are skipped. `transform` replaces each problem as soon as it is read, as `SpilledTests.keep` does.
    Raises DataError if the source cannot be read, or with `dates` if a row has no date.
    """
    return problems_in(load_rows(source, splits, role=role, limit=limit), rows, dates, transform, max_tests)


def problems_in(
    raw_rows: Iterable[RawRow],
    rows: RowReader,
    dates: Dates | None,
    transform: Callable[[Problem], Problem] | None,
    max_tests: int = -1,
) -> LoadResult:
    """The problems of raw rows, as `load_problems` says."""
    problems: dict[str, Problem] = {}
    drops: list[Drop] = []
    read = 0
    for row in raw_rows:
        if dates is not None and not dates.has(row):
            continue
        read += 1
        try:
            # Trim after parsing, since all tests decide the identity, and row by row, since all tests are gigabytes.
            problem = trim_tests(parse_row(row, rows), max_tests)
        except RowDropped as drop:
            drops.append(Drop("parse", drop.reason, drop.detail, None, row.split, row.source_row))
            continue
        # Records are looked up by problem id, so two problems cannot share one: the first row keeps it.
        if (first := problems.get(problem.problem_id)) is None:
            problems[problem.problem_id] = problem if transform is None else transform(problem)
            continue
        # A row that repeats a problem is harmless; one that has an earlier row's id with other tests is a mistake of
        # the data set. Tests alone tell these apart: statements, comparators and checkers may be worded differently.
        first_tests, own_tests = ((each.kind, each.entry_point, tuple(each.tests)) for each in (first, problem))
        reason = "same_identity" if own_tests == first_tests else SAME_ID_OTHER_TESTS
        drops.append(Drop.of(problem, "dedup", reason, f"same as row {first.source_row} of {first.split}"))
    return LoadResult(list(problems.values()), dropped_frame(drops), read)


def parse_row(row: RawRow, rows: RowReader = CODE_ROWS) -> Problem:
    """The problem in `row`: a pool's row (PROBLEM_SCHEMA) is checked, and its generated tests are left out; others are
    read by `rows`. Raises RowDropped."""
    if isinstance(row.values, Unread):
        raise RowDropped(row.values.reason, row.values.detail)
    stored = stored_problem(row.values, rows.kinds)
    return rows.read(row.values, split=row.split, source_row=row.source_row) if stored is None else stored.given()


def _in_turn(sources: Iterable[Iterator[ItemT]]) -> Iterator[ItemT]:
    """One item of each source in turn, until all are exhausted."""
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            try:
                yield next(source)
            except StopIteration:
                waiting.remove(source)


FINAL_ANSWER = re.compile(r"####\s*(.+)$")
"""Of GSM8K's stripped answers: what follows #### in the last line."""


def _question_row(row: Any, *, split: str, source_row: int) -> Problem:
    problem = answer_problem(row, "question", "answer", split=split, source_row=source_row)
    if not FINAL_ANSWER.search(problem.tests[0].expected.strip()):
        raise RowDropped("no_ground_truth", "no #### before the final number in answer")
    return problem


QUESTION_ROWS = RowReader(_question_row, ("answer",))
PROMPT_ROWS = RowReader(partial(answer_problem, text_column="prompt", truth_column="ground_truth"), ("answer",))


@dataclass(frozen=True, slots=True)
class EvaluationSide:
    """The problems evaluated on: the test splits of `source`, or with a `share` that share of its train rows."""

    source: str
    share: float | None = None

    @property
    def role(self) -> Role:
        return "test" if self.share is None else "train"

    def __str__(self) -> str:
        return self.source if self.share is None else f"{self.source}, of which test_share={self.share:g} is held out"

    def load(
        self,
        splits: list[str] | None = None,
        rows: RowReader = CODE_ROWS,
        dates: Dates | None = None,
        transform: Callable[[Problem], Problem] | None = None,
    ) -> LoadResult:
        """The problems of the evaluation side; arguments and errors are those of `load_problems`. With a `share` the
        result leaves out the train problems, and counts as dropped only rows that gave no problem."""

        def is_in(problem: Problem) -> bool:
            return self.share is None or is_held_out(problem.problem_id, self.share)

        def kept(problem: Problem) -> Problem:
            if is_in(problem):
                return problem if transform is None else transform(problem)
            return replace(problem, tests=(), solutions=(), wrong_solutions=())  # it is left out below

        loaded = load_problems(self.source, splits, role=self.role, rows=rows, dates=dates, transform=kept)
        if self.share is None:
            return loaded
        problems = list(filter(is_in, loaded.problems))
        # A row without a problem has no id to decide its side. It is counted, so that `unusable` reports it.
        dropped = loaded.dropped.filter(pl.col("problem_id").is_null())
        return LoadResult(problems, dropped, len(problems) + dropped.height)


def evaluation_side(settings: FlowSettings) -> EvaluationSide:
    """The evaluation side that `settings` ask for. Raises ConfigError where they name two."""
    if settings.test_share is not None and settings.evaluation_dataset is not None:
        raise ConfigError(
            f"evaluation_dataset={settings.evaluation_dataset} and test_share={settings.test_share:g} are two ways to "
            "say what is evaluated on: give one of them"
        )
    if settings.test_share is not None:
        return EvaluationSide(settings.dataset, settings.test_share)
    return EvaluationSide(settings.evaluation_dataset or settings.dataset)


def require_other_problems(settings: FlowSettings, trained_on: str | None, otherwise: str) -> None:
    """Raise ConfigError if the evaluation side is all of the file `trained_on`, and no setting asked for that."""
    side = evaluation_side(settings)
    asked_for = side.share is not None or settings.evaluation_dataset is not None
    if not asked_for and trained_on is not None and is_file(side.source) and same_source(side.source, trained_on):
        raise ConfigError(
            f"dataset={side.source} is one file, so its rows would be both trained and evaluated on: test_share=0.1, "
            "for curate and train, holds a tenth of them out; evaluation_dataset=DATASET evaluates on other ones (or "
            f"on these, if it names this file); {otherwise}"
        )


def same_source(one: str, other: str) -> bool:
    return one == other or (find_source(one) is not None and find_source(one) == find_source(other))


def same_side(one: EvaluationSide, other: EvaluationSide) -> bool:
    return same_source(one.source, other.source) and one.share == other.share


def is_held_out(problem_id: str, share: float) -> bool:
    """Whether a problem is in the evaluation side that `test_share=share` makes. A keyed hash of the id decides,
    whatever the seed: a pool and the runs on it agree, rows that are added move none, and what a smaller share holds
    out a larger one does too."""
    number = int.from_bytes(hashlib.sha256(f"test_share/{problem_id}".encode()).digest()[:8])
    return number < share * 2**64
