"""Parts: what became of one segment of the data, as two parquet files.

    NNNNN.dropped.parquet    its drops (DROPPED_SCHEMA)
    NNNNN.parquet            its problems, tests trimmed, and their signatures

Both appear whole or not at all, the drops first: where the second is, the segment is done, and a start after a crash
makes the others. Row groups are small, so that a few problems can be read without the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from coderl_tasks.filtering.signature import SIGNATURE_FIELDS, Signature
from coderl_tasks.journal.atomic import replacing
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, Problem, Test

GROUP_BYTES = 16 * 2**20
GROUP_ROWS = 512
TESTS_BYTES = pa.field("tests_bytes", pa.int64())
# Of the schema alone: an empty frame would start the threads of polars, which a process that is forked later lacks.
PROBLEM_FIELDS = list(pl.Schema(PROBLEM_SCHEMA).to_arrow(compat_level=pl.CompatLevel.oldest()))
PART_SCHEMA = pa.schema([*PROBLEM_FIELDS, TESTS_BYTES, *SIGNATURE_FIELDS])
"""A part's columns. `tests_bytes` is how much text the kept tests are."""
KEPT_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": pl.String(), "split": pl.String(), "source_row": pl.Int64(), "tests_bytes": pl.Int64(),
    "part": pl.String(), "row": pl.Int64(),
}  # fmt: skip
"""A kept problem and where it lies: row `row` of the parquet file `part` of the same folder."""
SHARD_BYTES = 128 * 2**20
SHORT_TEXTS = ["split", "kind", "entry_point"]


Add = Callable[[dict[str, Any], int], None]
"""Writes a row, a value for each column, of about so many bytes."""


@contextmanager
def writing(path: Path, schema: pa.Schema, compression: str = "lz4") -> Iterator[Add]:
    """Writes a parquet file row by row: yields a function to call with each row and about its size in bytes. The file
    is at `path` once the block has ended without an error. Row groups of about GROUP_BYTES bound the memory."""
    # A dictionary is read whole, however few rows are wanted: one of long texts would undo the small groups.
    dictionaries = [name for name in SHORT_TEXTS if name in schema.names]
    options: dict[str, Any] = {"use_dictionary": dictionaries, "write_statistics": False, "compression": compression}
    rows: list[dict[str, Any]] = []
    held = 0

    def add(row: dict[str, Any], size: int) -> None:
        nonlocal held
        rows.append(row)
        held += size
        # By size and by number: a row may be a few hundred bytes, or as many megabytes.
        if held >= GROUP_BYTES or len(rows) >= GROUP_ROWS:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()
            held = 0

    with replacing(path) as file, pq.ParquetWriter(file, schema, **options) as writer:
        yield add
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def part_row(problem: Problem, signature: Signature) -> tuple[dict[str, Any], int]:
    """A problem as a row of PART_SCHEMA, and its size in bytes."""
    size = sum(len(test.input) + len(test.expected) for test in problem.tests)
    hashes = zip(SIGNATURE_FIELDS, fields(Signature), strict=True)
    row = problem.to_row() | {"tests_bytes": size}
    row |= {column.name: getattr(signature, field.name) for column, field in hashes}
    return row, size + len(problem.statement) + sum(map(len, (*problem.solutions, *problem.wrong_solutions)))


def dropped_file(part: Path) -> Path:
    return part.with_suffix(".dropped.parquet")


@dataclass(frozen=True, slots=True)
class KeptProblems:
    """Problems in a fixed order; `table` (KEPT_SCHEMA) names them and says where in `folder` they lie. `comparators`
    replace the problems' own, and `generated` tests come after them, by problem id: that stays the raw row's."""

    folder: Path
    table: pl.DataFrame
    comparators: Mapping[str, str] = field(default_factory=dict)
    generated: Mapping[str, Sequence[Test]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.table.height

    def shards(self, size: int, max_bytes: int = SHARD_BYTES) -> list["KeptProblems"]:
        """Consecutive shards of at most `size` problems, and `max_bytes` of tests unless it is a single problem."""
        starts: list[int] = []
        held = 0
        for number, more in enumerate(self.table["tests_bytes"]):
            # By bytes too: a shard's tests are in memory together while it is worked on.
            if not starts or number - starts[-1] >= size or held + more > max_bytes:
                starts.append(number)
                held = 0
            held += more
        edges = pairwise([*starts, len(self)])
        return [replace(self, table=self.table.slice(start, end - start)) for start, end in edges]

    def only(self, problem_ids: Sequence[str]) -> "KeptProblems":
        """Those with these ids, in their own order."""
        return replace(self, table=self.table.filter(pl.col("problem_id").is_in(list(problem_ids))))

    def __iter__(self) -> Iterator[Problem]:
        """Read them one after the other: no more than a row group is held at a time."""
        return (Problem.from_row(row) for row, _ in self._rows())

    def outlines(self) -> Iterator[Problem]:
        """Read them without tests and solutions: small enough to have all of them at once."""
        large: dict[str, list[Any]] = {"tests": [], "solutions": [], "wrong_solutions": []}
        for row, _ in self._rows([name for name in PROBLEM_SCHEMA if name not in large]):
            yield Problem.from_row(row | large)

    def write(self, path: Path, extra: pl.DataFrame) -> None:
        """Write them to `path` as a table of PROBLEM_SCHEMA and the columns of `extra`, which has a row for each (else
        ValueError). The same problems and columns give the same bytes."""
        if extra.height != len(self):
            raise ValueError(f"{extra.height} rows of further columns for {len(self)} problems")
        schema = pa.schema([*PROBLEM_FIELDS, *extra.to_arrow().schema])
        with writing(path, schema, "zstd") as add:
            for (row, size), more in zip(self._rows(), extra.iter_rows(named=True), strict=True):
                add(row | more, size)

    def _rows(self, columns: Sequence[str] = tuple(PROBLEM_SCHEMA)) -> Iterator[tuple[dict[str, Any], int]]:
        """Reads `columns` of these problems' rows from their parquet files (parts), in order and with little memory:
        yields each row with the size of its tests in bytes. Replaced comparators and generated tests are put in."""
        for key, wanted in self.table.group_by("part", maintain_order=True):
            places = wanted.select("row", "tests_bytes")  # the row's number in the file
            with pq.ParquetFile(self.folder / str(key[0])) as file:
                first = 0  # the row group's first row
                present = [name for name in columns if name in file.schema_arrow.names]  # older parts have fewer
                for group in range(file.num_row_groups):
                    end = first + file.metadata.row_group(group).num_rows
                    here = places.filter(pl.col("row").is_between(first, end, closed="left")).rows()
                    if here:  # a group without a wanted row is not read
                        table = file.read_row_group(group, columns=present, use_threads=False)
                    for row, size in here:
                        values = table.slice(row - first, 1).to_pylist()[0]
                        if name := self.comparators.get(values["problem_id"]):
                            values["comparator"] = name
                        if (tests := self.generated.get(values["problem_id"])) and "tests" in values:
                            values = Problem.from_row(values).with_generated(tests).to_row()
                        yield values, size
                    first = end
