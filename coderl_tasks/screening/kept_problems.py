"""The problems that came through all stages, on disk: read a few at a time, or written to a file that adds columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from coderl_tasks.journal.atomic import read_parquet
from coderl_tasks.problems import PROBLEM_SCHEMA, Problem
from coderl_tasks.screening.parts import PROBLEM_FIELDS, writing

KEPT_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": pl.String(),
    "split": pl.String(),
    "source_row": pl.Int64(),
    "tests_bytes": pl.Int64(),
    "part": pl.String(),
    "row": pl.Int64(),
}
"""A kept problem and where it lies: row `row` of the parquet file `part` of the same folder."""
SHARD_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class KeptProblems:
    """Problems in a fixed order; `table` (KEPT_SCHEMA) names them and says where in `folder` they lie."""

    folder: Path
    table: pl.DataFrame

    @classmethod
    def load(cls, file: Path) -> "KeptProblems":
        """Those that the table `file` names. Raises DamagedFileError."""
        return cls(file.parent, read_parquet(file, KEPT_SCHEMA))

    def __len__(self) -> int:
        return self.table.height

    def shards(self, size: int, max_bytes: int = SHARD_BYTES) -> list["KeptProblems"]:
        """All of them in turn, cut so that no shard has more than `size` problems, or more than `max_bytes` of tests
        unless it is one problem."""
        if not len(self):
            return []
        starts: list[int] = []
        held = 0
        for number, more in enumerate(self.table["tests_bytes"]):
            if not starts or number - starts[-1] >= size or held + more > max_bytes:
                starts.append(number)
                held = 0
            held += more
        ends = [*starts[1:], len(self)]
        return [
            KeptProblems(self.folder, self.table.slice(start, end - start))
            for start, end in zip(starts, ends, strict=True)
        ]

    def only(self, problem_ids: Sequence[str]) -> "KeptProblems":
        """Those with these ids, in their own order."""
        return KeptProblems(self.folder, self.table.filter(pl.col("problem_id").is_in(list(problem_ids))))

    def __iter__(self) -> Iterator[Problem]:
        """Read them one after the other: no more than a row group (see `parts`) is held at a time."""
        return (Problem.from_row(row) for row, _ in self._rows())

    def outlines(self) -> Iterator[Problem]:
        """Read them without tests and solutions: small enough to have all of them at once."""
        large: dict[str, list[Any]] = {"tests": [], "solutions": []}
        for row, _ in self._rows([name for name in PROBLEM_SCHEMA if name not in large]):
            yield Problem.from_row(row | large)

    def write(self, path: Path, extra: pl.DataFrame) -> None:
        """Write them to `path` as a table of PROBLEM_SCHEMA and the columns of `extra`, which has a row for each.

        The same problems and columns give the same bytes. Raises ValueError where the numbers of rows differ.
        """
        if extra.height != len(self):
            raise ValueError(f"{extra.height} rows of further columns for {len(self)} problems")
        schema = pa.schema([*PROBLEM_FIELDS, *extra.to_arrow().schema])
        with writing(path, schema, "zstd") as table:
            for (row, size), more in zip(self._rows(), extra.iter_rows(named=True), strict=True):
                table.add(row | more, size)

    def _rows(self, columns: Sequence[str] = tuple(PROBLEM_SCHEMA)) -> Iterator[tuple[dict[str, Any], int]]:
        """Rows of `columns`, each with the size of its tests in bytes."""
        for key, wanted in self.table.group_by("part", maintain_order=True):
            places = iter(wanted.select("row", "tests_bytes").iter_rows())
            row, size = next(places, (None, 0))
            with pq.ParquetFile(self.folder / str(key[0])) as file:
                first = 0
                for group in range(file.num_row_groups):
                    end = first + file.metadata.row_group(group).num_rows
                    if row is not None and row < end:
                        table = file.read_row_group(group, columns=list(columns), use_threads=False)
                        while row is not None and row < end:
                            yield table.slice(row - first, 1).to_pylist()[0], size
                            row, size = next(places, (None, 0))
                    first = end
