"""Problems in files: a range of rows that any machine may read; a pool whose tests stay in the file; and for problems
of any other source a file of their tests."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import overload

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from coderl_tasks.addresses import explained, filesystem
from coderl_tasks.errors import DataError
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, Problem, Test, problems_from_frame

MOST_GROUP_BYTES = 64 * 2**20
"""Uncompressed size of a row group that is read for a single problem; a pool's have about 16 MiB."""


def read_problem_rows(addresses: Sequence[str], start: int = 0, count: int = -1) -> list[Problem]:
    """Problems `start` to `start + count` (-1: to the end) of the files at `addresses`, counted over all, in order.

    The files have the columns of PROBLEM_SCHEMA, further ones are ignored; only row groups in the range are read.
    Raises DataError for a file that is missing or is none of problems, ConfigError for an address that will not do.
    """
    problems: list[Problem] = []
    place = 0
    for address in addresses:
        fs, path = filesystem(address)
        with explained(address), fs.open(path, "rb") as file:
            try:
                table = pq.ParquetFile(file)
                missing = PROBLEM_SCHEMA.keys() - set(table.schema_arrow.names)
            except pa.ArrowInvalid as error:
                raise DataError(f"{address} cannot be read as parquet ({str(error).partition(chr(10))[0]})") from error
            if missing:
                raise DataError(f"{address} holds no problems: it has no column {', '.join(sorted(missing))}")
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                low = max(0, start - place)
                high = rows if count < 0 else min(rows, start + count - place)
                place += rows
                if low < high:
                    frame = pl.DataFrame(table.read_row_group(group, columns=list(PROBLEM_SCHEMA)))
                    problems += problems_from_frame(frame.slice(low, high - low))
    return problems


class StoredTests(Sequence[Test]):
    """The tests of one problem in a file, of which only the number is in memory, and where `first` is given the
    first one: prompts are made of it. Each other access reads: `Problem.whole` is for more than one.

    Raises DataError where the file is no longer what it was when the pool was opened.
    """

    def __init__(
        self, file: "PoolFile | SpilledTests", place: tuple[int, int], problem_id: str, count: int, first: Test | None
    ) -> None:
        self._file = file
        self._place = place
        self._problem_id = problem_id
        self._count = count
        self._first = first

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Test]:
        tests = self._file.tests(*self._place, self._problem_id)
        if len(tests) != self._count:
            raise DataError(
                f"the pool {self._file.path} is damaged: problem {self._problem_id} has {len(tests)} tests and "
                f"tests_total={self._count}"
            )
        return iter(tests)

    @overload
    def __getitem__(self, index: int) -> Test: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Test]: ...
    def __getitem__(self, index: int | slice) -> Test | Sequence[Test]:
        return self._first if index == 0 and self._first is not None else tuple(self)[index]


class PoolFile:
    """A pool's parquet file, held open, so that a run keeps its tests where the pool is removed or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = pq.ParquetFile(path)
        self._lock = Lock()  # a reader has one place in the file, and groups are graded in several threads

    def problems(self) -> list[Problem]:
        """All problems without their solutions, their tests left in the file, where they need not be read. Tests in row
        groups too large to be read for a single problem are kept in memory: those of a file that something else
        wrote."""
        found: list[Problem] = []
        for group in range(self._file.num_row_groups):
            about = self._file.metadata.row_group(group)
            frame = self._read(group, [name for name in PROBLEM_SCHEMA if name not in ("tests", "solutions")])
            frame = frame.with_columns(solutions=pl.lit([], PROBLEM_SCHEMA["solutions"]))
            if about.total_byte_size > MOST_GROUP_BYTES and about.num_rows > 1:
                found += problems_from_frame(frame.with_columns(self._read(group, ["tests"])))
                continue
            counts: list[int] = frame["tests_total"].to_list()
            firsts: list[Test | None] = [None] * frame.height
            # A program's tests are only run; of the others prompts are made, or they are the answer.
            if not (frame["kind"] == "stdin").all() or not self._has_tests(group, frame["tests_total"]):
                tests = self._read(group, ["tests"])["tests"]
                counts = tests.list.len().to_list()
                first = [Test(**each[0]) if each else None for each in tests.list.head(1).to_list()]
                firsts = [None if kind == "stdin" else one for kind, one in zip(frame["kind"], first, strict=True)]
            bare = frame.with_columns(tests=pl.lit([], PROBLEM_SCHEMA["tests"]))
            for row, problem in enumerate(problems_from_frame(bare)):
                stored = StoredTests(self, (group, row), problem.problem_id, counts[row], firsts[row])
                found.append(replace(problem, tests=stored))
        return found

    def _has_tests(self, group: int, counts: pl.Series) -> bool:
        """Whether the problems of a row group have as many tests as `counts` says, as far as the file's footer tells:
        their sum. It is of `coderl curate` that they do; something else may have written the file."""
        about = self._file.metadata.row_group(group)
        columns = (about.column(number) for number in range(about.num_columns))
        values = [column.num_values for column in columns if column.path_in_schema.startswith("tests.")]
        # A list without a test counts as a value: it is read, to be sure.
        return not counts.has_nulls() and bool((counts > 0).all()) and set(values) == {int(counts.sum())}

    def _read(self, group: int, columns: list[str]) -> pl.DataFrame:
        with self._lock:
            return pl.DataFrame(self._file.read_row_group(group, columns=columns, use_threads=False))

    def tests(self, group: int, row: int, problem_id: str) -> tuple[Test, ...]:
        """The tests of the problem with this id in row `row` of row group `group`."""
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
    """The tests of problems that come from anywhere, in a file in `folder` that has no name there and ends with this
    process: an evaluation's problems stay for the whole of a run, and their tests can be gigabytes."""

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
        # A program's tests are only run; of the others prompts are made, or they are the answer.
        first = None if problem.kind == "stdin" or not problem.tests else problem.tests[0]
        stored = StoredTests(self, place, problem.problem_id, len(problem.tests), first)
        return replace(problem, tests=stored, solutions=())

    def tests(self, start: int, size: int, problem_id: str) -> tuple[Test, ...]:
        """The tests in the `size` bytes from `start` on. DataError, which names the problem, if they cannot be read."""
        try:
            # By place: several threads read, and the file's own place is where the next problem is written.
            found = json.loads(os.pread(self._file.fileno(), size, start))
        except (OSError, ValueError) as error:
            raise DataError(f"the tests of problem {problem_id} cannot be read any more: {error}") from error
        return tuple(Test(given, expected) for given, expected in found)
