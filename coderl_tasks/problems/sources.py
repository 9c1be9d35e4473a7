"""Where raw rows come from: a data set on the hub or in a local folder, a parquet file or a JSONL file.

Rows with tests of 200 MB exist, so files are read in batches of a few rows.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coderl_tasks.errors import DataError
from coderl_tasks.paths import MINI_DATASET, find_local
from coderl_tasks.problems.problem import TEST_SPLITS, TRAIN_SPLITS
from coderl_tasks.settings import HUB_DATASET

Role = Literal["train", "test"]


PINNED_REVISIONS = {HUB_DATASET: "177913a7bd43791646ef6a43645caa3c871ab3db"}
ROWS_PER_BATCH = 8
JSONL_SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as it was read. `values` is a mapping, or the line's text where that is not a JSON object."""

    split: str
    source_row: int
    values: Any


@dataclass(frozen=True, slots=True)
class RowSource:
    """The rows of one split of a source."""

    split: str
    rows: Iterator[RawRow]


def open_source(source: str, splits: Sequence[str] | None, role: Role) -> list[RowSource]:
    """The splits of `source`, each with its rows still to be read.

    A parquet or JSONL file is one source whose rows name their split in a column `split`, else the file's name does;
    `splits` then keeps the rows that are in one of them. Anything else goes to `load_dataset`, config by config,
    `role` being the split that is read: the configs named in `splits`, by default those of the project's
    `TRAIN_SPLITS` or `TEST_SPLITS` that there are, and if there are none of these, all. Raises DataError.
    """
    path = find_local(source)
    if path is not None and path.is_file():
        if path.suffix == ".parquet":
            rows = _parquet_rows(path)
        elif path.suffix in JSONL_SUFFIXES:
            rows = _jsonl_rows(path)
        else:
            raise DataError(f"{path}: expected a .parquet or .jsonl file, or a data set folder.")
        kept = (row for row in rows if splits is None or row.split in splits)
        return [RowSource(path.stem, kept)]
    if path is None and (Path(source).suffix in (".parquet", *JSONL_SUFFIXES) or source.startswith(("/", ".", "~"))):
        raise DataError(f"{source}: no such file or folder.")
    location = str(path) if path is not None else source
    revision = PINNED_REVISIONS.get(source)
    names = _config_names(source, location, revision, splits, role)
    return [RowSource(name, _dataset_rows(source, location, name, revision, role)) for name in names]


def _config_names(
    source: str, location: str, revision: str | None, splits: Sequence[str] | None, role: Role
) -> list[str]:
    from datasets import get_dataset_config_names

    try:
        available = get_dataset_config_names(location, revision=revision)
    except Exception as error:  # the hub client's, the file system's and the data set's own errors have no common base
        raise _unreadable(source, error) from error
    if splits is not None:
        missing = [name for name in splits if name not in available]
        if missing:
            raise DataError(f"{source} has no split {', '.join(missing)}; there are: {', '.join(available)}.")
        return list(splits)
    usual = TRAIN_SPLITS if role == "train" else TEST_SPLITS
    return [name for name in usual if name in available] or list(available)


def _dataset_rows(source: str, location: str, name: str, revision: str | None, role: Role) -> Iterator[RawRow]:
    from datasets import load_dataset

    try:
        with _progress_bars_for_downloads_only(location):
            dataset = load_dataset(location, name, split=role, revision=revision, writer_batch_size=ROWS_PER_BATCH)
    except Exception as error:  # as above
        raise _unreadable(f"{source} ({name}, {role})", error) from error
    for number, values in enumerate(dataset):
        yield RawRow(name, number, values)


@contextmanager
def _progress_bars_for_downloads_only(location: str) -> Iterator[None]:
    import datasets

    quiet = Path(location).is_dir() and not datasets.are_progress_bars_disabled()
    if quiet:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if quiet:
            datasets.enable_progress_bars()


def _parquet_rows(path: Path) -> Iterator[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH):
                for values in batch.to_pylist():
                    yield RawRow(_split_of(values, path), number, values)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(str(path), error) from error


def _jsonl_rows(path: Path) -> Iterator[RawRow]:
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = line
            yield RawRow(_split_of(values, path), number, values)


def _split_of(values: Any, path: Path) -> str:
    named = values.get("split") if isinstance(values, dict) else None
    return named if isinstance(named, str) and named.isprintable() and named.strip() else path.stem


def _unreadable(what: str, error: Exception) -> DataError:
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return DataError(
        f"Cannot read the data set {what}: {reason} "
        f"(dataset= takes a hub name, a local data set folder such as {MINI_DATASET}, a .parquet or a .jsonl file)"
    )
