"""The normalised problem, the record of a row that was dropped (kept + dropped = read), and their parquet schemas; and
problems whose tests stay in a file: a pool's, or one of their tests alone."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, ClassVar, Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from coderl_tasks.addresses import explained, filesystem
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.untrusted_text import printable

Kind = Literal["stdin", "call", "assert", "answer"]
"""How a completion is judged; the ground truth of an `answer` is the only test's `expected`."""
TRAIN_SPLITS = ("primeintellect", "taco", "lcbv5")
TEST_SPLITS = ("codeforces", "lcbv5")
TEXT = pl.String()
PROBLEM_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": TEXT, "split": TEXT, "statement": TEXT, "starter_code": TEXT, "kind": TEXT, "entry_point": TEXT,
    "tests": pl.List(pl.Struct({"input": TEXT, "expected": TEXT})), "tests_total": pl.Int32(),
    "tests_original": pl.Int32(), "time_limit_s": pl.Float64(), "solutions": pl.List(TEXT), "source_row": pl.Int64(),
    "comparator": TEXT, "checker": TEXT, "wrong_solutions": pl.List(TEXT), "tests_generated": pl.Int32(),
}  # fmt: skip
"""Polars writes strings as parquet large_string, so tests of hundreds of megabytes do not overflow."""
PROGRAMS = ("solutions", "wrong_solutions")
"""The columns of a problem's reference solutions and known-wrong programs, which nothing needs that only grades."""
REQUIRED = PROBLEM_SCHEMA.keys() - {"comparator", "checker", "wrong_solutions", "tests_generated"}
"""The columns without which a table has no problems: one that names no comparator has the default's."""
DROPPED_SCHEMA: dict[str, pl.DataType] = {
    "stage": TEXT, "reason": TEXT, "detail": TEXT, "problem_id": TEXT, "split": TEXT, "source_row": pl.Int64(),
    "statement": TEXT,
}  # fmt: skip
"""`problem_id` and `statement` are null for a row that never became a problem."""
DETAIL_CHARS = 300
MOST_GROUP_BYTES = 64 * 2**20
"""Uncompressed size of a row group that is read for a single problem; a pool's have about 16 MiB."""


@dataclass(frozen=True, slots=True)
class Test:
    """One test. For `call` problems `input` is a JSON array of arguments and `expected` a JSON value; for `assert`
    problems `input` is empty and `expected` the test's source text."""

    __test__: ClassVar[bool] = False  # not a test class for pytest

    input: str
    expected: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with the tests it is graded on: a tuple, or `StoredTests`, which are read from a file.

    `problem_id` is a stable hash of the content, or the raw row's own id; `split` is the data set's config name;
    `tests_total` counts the tests kept, `tests_original` those before trimming; `time_limit_s` is CPU seconds per
    test, None where the data names none; `source_row` is the row number in the raw split; `comparator` says when an
    answer is right (`problems.comparators`), if no `checker` does (`Checker.to_text`; "" where there is none);
    `wrong_solutions` are programs that are known not to pass; the last `tests_generated` tests are not the data's.
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
    comparator: str = "tokens"
    checker: str = ""
    wrong_solutions: tuple[str, ...] = ()
    tests_generated: int = 0

    def given(self) -> "Problem":
        """The problem without its generated tests, as evaluations and curations have it."""
        if not self.tests_generated:
            return self
        tests = tuple(self.tests)[: -self.tests_generated]
        return replace(self, tests=tests, tests_total=len(tests), tests_generated=0)

    def with_generated(self, tests: Sequence[Test]) -> "Problem":
        """The problem with further tests, generated ones, after its own."""
        whole, generated = (*self.tests, *tests), self.tests_generated + len(tests)
        return replace(self, tests=whole, tests_total=len(whole), tests_generated=generated)

    def whole(self) -> "Problem":
        """The problem with its tests in memory."""
        return self if isinstance(self.tests, tuple) else replace(self, tests=tuple(self.tests))

    def to_row(self) -> dict[str, Any]:
        """The problem as one row of `PROBLEM_SCHEMA`."""
        return {name: getattr(self, name) for name in _FIELDS} | {
            "tests": [{"input": test.input, "expected": test.expected} for test in self.tests],
            "solutions": list(self.solutions),
            "wrong_solutions": list(self.wrong_solutions),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Problem":
        """The problem in a row of `PROBLEM_SCHEMA`; further columns (a pool's) are ignored."""
        values = {name: row[name] for name in _FIELDS if name in REQUIRED or name in row}
        values |= {name: tuple(row.get(name) or ()) for name in PROGRAMS}
        values["tests"] = tuple(Test(test["input"], test["expected"]) for test in row["tests"])
        values["tests_generated"] = row.get("tests_generated") or 0
        return cls(**values)


_FIELDS = tuple(field.name for field in fields(Problem))


def problems_frame(problems: list[Problem]) -> pl.DataFrame:
    return pl.DataFrame([problem.to_row() for problem in problems], schema=PROBLEM_SCHEMA)


def problems_from_frame(frame: pl.DataFrame) -> list[Problem]:
    return [Problem.from_row(row) for row in frame.iter_rows(named=True)]


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
        return cls(stage, reason, detail, problem.problem_id, problem.split, problem.source_row, problem.statement)


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


def trim_tests(problem: Problem, max_tests: int) -> Problem:
    """`problem` with its `max_tests` longest-input tests, as DeepCoder chose its 15, in their original order; -1 keeps
    all. Of equally long inputs the earlier come first. Raises ValueError for max_tests of 0 or below -1."""
    if max_tests == 0 or max_tests < -1:
        raise ValueError(f"max_tests must be positive, or -1 for all, got {max_tests}")
    if max_tests == -1 or len(problem.tests) <= max_tests:
        return problem
    longest_first = sorted(range(len(problem.tests)), key=lambda index: -len(problem.tests[index].input))
    kept = sorted(longest_first[:max_tests])
    return replace(problem, tests=tuple(problem.tests[index] for index in kept), tests_total=max_tests)


def read_problem_rows(addresses: Sequence[str], start: int = 0, count: int = -1) -> list[Problem]:
    """Problems `start` to `start + count` (-1: to the end) of the parquet files at `addresses`, numbered across files.
    Columns outside PROBLEM_SCHEMA and row groups outside the range are not read. Raises DataError for a file that is
    missing, damaged or without problems' columns, ConfigError for an unusable address."""
    problems: list[Problem] = []
    group_start = 0  # the number of the row group's first row, across files
    for address in addresses:
        fs, path = filesystem(address)
        with explained(address), fs.open(path, "rb") as file:
            try:
                table = pq.ParquetFile(file)
                if missing := REQUIRED.difference(table.schema_arrow.names):
                    raise DataError(f"{address} holds no problems: it has no column {', '.join(sorted(missing))}")
                columns = [name for name in PROBLEM_SCHEMA if name in table.schema_arrow.names]
                for group in range(table.num_row_groups):
                    rows = table.metadata.row_group(group).num_rows
                    low = max(0, start - group_start)
                    high = rows if count < 0 else min(rows, start + count - group_start)
                    group_start += rows
                    if low < high:
                        frame = pl.DataFrame(table.read_row_group(group, columns=columns))
                        problems += problems_from_frame(frame.slice(low, high - low))
            except (pa.ArrowInvalid, OSError) as error:
                # Arrow raises OSError for damaged pages too, without a number; the file system's own errors have one.
                if isinstance(error, OSError) and (error.errno is not None or "://" in address.removeprefix("file://")):
                    raise
                first_line = str(error).partition("\n")[0]
                raise DataError(f"{address} cannot be read as parquet ({first_line})") from error
    return problems


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoredTests(Sequence[Test]):
    """The tests of one problem in a file; in memory are their number and perhaps the `first`, for prompts. Each other
    access reads (`Problem.whole`: once). Raises DataError where the file was changed meanwhile."""

    file: "PoolFile | SpilledTests"
    place: tuple[int, int]
    problem_id: str
    number: int
    first: Test | None
    digest: str = ""
    """A hash of all of them, where it is known."""

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Test]:
        tests = self.file.tests(*self.place, self.problem_id)
        if len(tests) != self.number:
            raise DataError(
                f"the pool {self.file.path} is damaged: problem {self.problem_id} has {len(tests)} tests and "
                f"tests_total={self.number}"
            )
        return iter(tests)

    def __getitem__(self, index: Any) -> Any:  # a test, or those of a slice
        return self.first if index == 0 and self.first is not None else tuple(self)[index]


class PoolFile:
    """A pool's parquet file, held open, so that a run keeps its tests where the pool is removed or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = pq.ParquetFile(path)
        self._lock = Lock()  # a reader has one place in the file, and groups are graded in several threads

    def problems(self) -> list[Problem]:
        """All problems, without solutions; `problem.tests` reads tests from the file when they are used. Those of large
        row groups of several problems, which other programs write, stay in memory: a read per problem would be slow."""
        problems: list[Problem] = []
        for group in range(self._file.num_row_groups):
            about = self._file.metadata.row_group(group)
            frame = self._read(group, [name for name in PROBLEM_SCHEMA if name not in ("tests", *PROGRAMS)])
            frame = frame.with_columns(pl.lit([], PROBLEM_SCHEMA[name]).alias(name) for name in PROGRAMS)
            if about.total_byte_size > MOST_GROUP_BYTES and about.num_rows > 1:
                problems += problems_from_frame(frame.with_columns(self._read(group, ["tests"])))
                continue
            counts = frame["tests_total"]
            first_tests: Any = [()] * frame.height  # per problem a list of its first test, or an empty one
            # Reading tests is slow. The footer tells their sum, by which `tests_total` is right where `coderl curate`
            # wrote the file; something else may have. A list without a test counts as a value there.
            columns = [about.column(number) for number in range(about.num_columns)]
            sums = {column.num_values for column in columns if column.path_in_schema.startswith("tests.")}
            are_right = not counts.has_nulls() and (counts > 0).all() and sums == {int(counts.sum())}
            # The prompt of a call is made of its first test's arguments; an answer's first test has the ground truth.
            if not are_right or not (frame["kind"] == "stdin").all():
                tests = self._read(group, ["tests"])["tests"]
                counts, first_tests = tests.list.len(), tests.list.head(1).to_list()
            without_tests = problems_from_frame(frame.with_columns(tests=pl.lit([], PROBLEM_SCHEMA["tests"])))
            for row, (problem, count, head) in enumerate(zip(without_tests, counts, first_tests, strict=True)):
                first = Test(**head[0]) if head and problem.kind != "stdin" else None
                stored = StoredTests(self, (group, row), problem.problem_id, count, first)
                problems.append(replace(problem, tests=stored))
        return problems

    def _read(self, group: int, columns: list[str]) -> pl.DataFrame:
        with self._lock:
            there = [name for name in columns if name in self._file.schema_arrow.names]
            return pl.DataFrame(self._file.read_row_group(group, columns=there, use_threads=False))

    def tests(self, group: int, row: int, problem_id: str) -> tuple[Test, ...]:
        """The tests of a problem by its place. DataError if they cannot be read, or it is another problem's."""
        try:
            with self._lock:
                table = self._file.read_row_group(group, columns=["problem_id", "tests"], use_threads=False)
            found = table.slice(row, 1).to_pylist()[0]
        except (OSError, pa.ArrowInvalid, IndexError) as error:
            raise DataError(f"the pool {self.path} cannot be read any more: {error}") from error
        if found["problem_id"] != problem_id:
            raise DataError(f"the pool {self.path} was changed while it was trained on: start again with its old file")
        return tuple(Test(test["input"], test["expected"]) for test in found["tests"])


class SpilledTests:
    """The tests of any problems in a file in `folder` that has no name and ends with this process: an evaluation's stay
    for the whole of a run, and can be gigabytes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - it lives as long as the problems
        self._size = 0

    def keep(self, problem: Problem) -> Problem:
        """`problem` without its solutions, its tests in the file. OSError if they do not fit on the disk."""
        # Not parquet: problems come one at a time, and a row group of each would be nearly all metadata.
        data = json.dumps([(test.input, test.expected) for test in problem.tests]).encode()
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            error.filename = str(self.path)  # the file has no name
            raise
        place, self._size = (self._size, len(data)), self._size + len(data)
        first = None if problem.kind == "stdin" or not problem.tests else problem.tests[0]  # as in `PoolFile`
        digest = sha256(data).hexdigest()
        stored = StoredTests(self, place, problem.problem_id, len(problem.tests), first, digest)
        return replace(problem, tests=stored, solutions=(), wrong_solutions=())

    def tests(self, start: int, size: int, problem_id: str) -> tuple[Test, ...]:
        """The tests in the `size` bytes from `start` on. DataError if they cannot be read."""
        try:
            # By place: several threads read, and the file's own place is where the next problem is written.
            found = json.loads(os.pread(self._file.fileno(), size, start))
        except (OSError, ValueError) as error:
            raise DataError(f"the tests of problem {problem_id} cannot be read any more: {error}") from error
        return tuple(Test(given, expected) for given, expected in found)


def check_pool(path: Path) -> None:
    """Raise DataError if a pool's parquet file cannot be read or is no pool, ConfigError if it is empty."""
    if path.suffix == ".jsonl":  # easily mistaken for a pool
        raise ConfigError(f"pool={path} is a data set, not a pool: make one of it (coderl curate dataset={path})")
    with _pool_errors(path):
        # Read only the footer: the tests of a pool can be gigabytes.
        pool = pl.scan_parquet(path, glob=False)
        schema, rows = pool.collect_schema(), pool.select(pl.len()).collect().item()
    needed = "it has to be one that `coderl curate` wrote"
    missing = [name for name in PROBLEM_SCHEMA if name in REQUIRED - schema.keys()]
    if missing:
        columns = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise DataError(f"the pool {path} has no {columns}: {needed}")
    if schema["tests"] != PROBLEM_SCHEMA["tests"]:
        raise DataError(f"the pool {path}: column tests is {schema['tests']}, not {PROBLEM_SCHEMA['tests']}: {needed}")
    if not rows:
        raise ConfigError(
            f"the pool {path} is empty: curate other problems, or with another model or band (the report beside it "
            "says why each row was dropped)"
        )


def read_pool(path: Path) -> list[Problem]:
    """The problems of a pool's parquet file, without solutions, their tests left there. Raises as `check_pool`."""
    check_pool(path)
    with _pool_errors(path):
        return PoolFile(path).problems()


def profiled_counts(path: Path) -> dict[str, tuple[int, int]]:
    """Right and graded completions of the profile by problem id, from a pool's file; empty where it has none."""
    names = ["problem_id", "n_correct", "n_samples"]
    with _pool_errors(path):
        scan = pl.scan_parquet(path, glob=False)
        if not set(names) <= scan.collect_schema().keys():
            return {}
        rows = scan.select(names).drop_nulls().collect().iter_rows()
        return {problem_id: (right, graded) for problem_id, right, graded in rows}


@contextmanager
def _pool_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"the pool {path} cannot be read: {' '.join(str(error).split())}") from error
