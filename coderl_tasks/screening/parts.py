"""Parts: what became of one segment of the data, as two parquet files.

    NNNNN.dropped.parquet    its drops (DROPPED_SCHEMA)
    NNNNN.parquet            its problems, tests trimmed, and their signatures

Both appear whole or not at all, the drops first: where the second is, the segment is done. Row groups are small, so
that a few problems can be read without the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from coderl_tasks.journal.atomic import replacing, write_parquet
from coderl_tasks.problems import PROBLEM_SCHEMA, Drop, Problem, dropped_frame
from coderl_tasks.screening.signature import SIGNATURE_FIELDS, Signature, signature_row

GROUP_BYTES = 16 * 2**20
GROUP_ROWS = 512
TESTS_BYTES = pa.field("tests_bytes", pa.int64())
PROBLEM_FIELDS = list(pl.DataFrame(schema=PROBLEM_SCHEMA).to_arrow().schema)
PART_SCHEMA = pa.schema([*PROBLEM_FIELDS, TESTS_BYTES, *SIGNATURE_FIELDS])
"""A part's columns. `tests_bytes` is how much text the kept tests are."""
SHORT_TEXTS = ["split", "kind", "entry_point"]


class ProblemTable:
    """Writes rows to a parquet file, in row groups of about GROUP_BYTES: what is held does not grow with the file."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        dictionaries = [name for name in SHORT_TEXTS if name in schema.names]
        self._schema = schema
        self._writer = pq.ParquetWriter(
            file, schema, compression=compression, use_dictionary=dictionaries, write_statistics=False
        )
        self._rows: list[dict[str, Any]] = []
        self._size = 0
        self.written = 0

    def add(self, row: dict[str, Any], size: int) -> None:
        """Write `row`, a value for each column, of about `size` bytes."""
        self._rows.append(row)
        self._size += size
        self.written += 1
        if self._size >= GROUP_BYTES or len(self._rows) >= GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
            self._rows, self._size = [], 0


@contextmanager
def writing(path: Path, schema: pa.Schema, compression: str = "lz4") -> Iterator[ProblemTable]:
    """A table that is at `path` when the block has ended without an error."""
    with replacing(path) as file:
        table = ProblemTable(file, schema, compression)
        yield table
        table.close()


def part_row(problem: Problem, signature: Signature) -> tuple[dict[str, Any], int]:
    """A problem as a row of PART_SCHEMA, and its size in bytes."""
    size = sum(len(test.input) + len(test.expected) for test in problem.tests)
    row = problem.to_row() | {"tests_bytes": size} | signature_row(signature)
    return row, size + len(problem.statement) + sum(len(solution) for solution in problem.solutions)


def dropped_file(part: Path) -> Path:
    """The file of the drops that belongs to `part`."""
    return part.with_suffix(".dropped.parquet")


def write_drops(part: Path, drops: list[Drop]) -> None:
    """Write the drops of `part`, which is to be written after them."""
    write_parquet(dropped_file(part), dropped_frame(drops))
