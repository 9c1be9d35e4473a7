"""Files that a crash cannot spoil: those written whole are there whole or not at all, those appended to lose their last
line at most.

1. A whole file is written beside its place, synced to disk, then renamed over it. A crash at any moment leaves the old
   file or the new one, and perhaps a `.NAME.*.tmp`: see `remove_leftovers`.
2. JSON lines, one object per line, are appended durably. A crash while appending leaves at most a torn last line.
3. A file that is damaged all the same (a full disk, a bad copy) raises `DamagedFileError` when it is read. `set_aside`
   keeps it for people under another name, so that its work is done again.
"""

import io
import json
import logging
import os
import secrets
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.journal.lock import require_in_place
from coderl_tasks.paths import private_folder

Row = dict[str, Any]
logger = logging.getLogger(__name__)


class DamagedFileError(DataError):
    """A file of the journal that cannot be what was written. `path` is the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An open file whose content is at `path`, atomically and durably, when the block has ended without an error.

    The folder must exist. DirectoryMovedError if it is no longer the one that this process holds.
    """
    require_in_place(path)
    # In the same folder, as a rename is atomic only within a file system. Not one of tempfile's: its mode 0600
    # would outlive the rename, where the umask is to decide.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with naming(path), temporary.open("xb") as file:
            yield file
            file.flush()
            # The data before the name: else a power cut can leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # BaseException: Ctrl-C and a cancelled task must leave no temporary file either.
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Put `data` at `path`, atomically and durably. The folder must exist."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put `path` into an OSError of the block that names no file, as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_json(path: Path, value: Any) -> None:
    """Put `value` at `path` as indented JSON. NaN and infinities are refused (ValueError): JSON has none."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """Put `frame` at `path` as zstd parquet; the same frame gives the same bytes."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=True)
    write_bytes(path, buffer.getvalue())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object at `path`. Raises FileNotFoundError, or DamagedFileError if it holds anything else."""
    data = path.read_bytes()
    try:
        value = json.loads(data)
    except ValueError as error:
        raise DamagedFileError(path, f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamagedFileError(path, f"a JSON object was expected, not {type(value).__name__}")
    return value


def read_parquet(
    path: Path, schema: Mapping[str, pl.DataType] | None = None, *, never_lacking: Container[str] | None = None
) -> pl.DataFrame:
    """The table at `path`. Raises FileNotFoundError, or DamagedFileError if it cannot be read or lacks a column of
    `schema`, or has it in another type.

    With `never_lacking` only these may not be missing: any other missing column is null, and the columns are in the
    order of `schema`.
    """
    data = path.read_bytes()
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        # polars panics on some truncated files, and its PanicException is a BaseException.
        raise DamagedFileError(path, f"not parquet ({' '.join(str(error).split())[:200]})") from error
    missing = {}
    for name, kind in (schema or {}).items():
        if name not in frame.schema and never_lacking is not None and name not in never_lacking:
            missing[name] = pl.lit(None, dtype=kind)
        elif frame.schema.get(name) != kind:
            raise DamagedFileError(path, f"column {name!r} is {frame.schema.get(name)}, expected {kind}")
    if not missing:
        return frame
    return frame.with_columns(**missing).select(*(schema or {}), pl.exclude(*(schema or {})))


def set_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged-N in its folder and return the new path."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(target)
    sync_folder(path.parent)
    return target


def remove_leftovers(folder: Path) -> int:
    """Delete what interrupted writes left anywhere under `folder`; how many there were."""
    leftovers = [path for path in folder.rglob(".*.tmp") if path.is_file()]
    for path in leftovers:
        path.unlink()
    return len(leftovers)


def make_folder(folder: Path, *, private: bool = False) -> Path:
    """Create `folder` and its parents, durably. No error if it exists; DirectoryMovedError if it would be created where
    a folder was that this process holds. What is created is for this user alone if `private`."""
    require_in_place(folder)
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    if private:
        private_folder(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    # Each one in its parent: syncing a folder does not make the entry that leads to it durable.
    for created in reversed(missing):
        sync_folder(created.parent)
    return folder


def sync_folder(folder: Path) -> None:
    """Make renames, creations and deletions in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_rows(path: Path) -> list[Row]:
    """The objects in `path`, none if it is missing. A torn last line is left out; a damaged line before it raises
    DamagedFileError."""
    return _parse(path)[0]


def append_row(path: Path, row: Row) -> None:
    """Append `row` and return when it is on disk. A last line without its newline is cut off first."""
    require_in_place(path)
    # A row appended to a torn line would merge with it, and the damage would then lie before the last line, where it
    # is no longer known to be a crash's.
    if not _ends_with_newline(path):
        repair(path)
    with naming(path), path.open("ab") as file:
        file.write(_encode(row))
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: Path, rows: list[Row]) -> None:
    """Replace the whole file by `rows`, atomically."""
    write_bytes(path, b"".join(map(_encode, rows)))


def repair(path: Path) -> bool:
    """Cut off a torn last line; whether there was one. Only the directory's owner may do this."""
    rows, torn = _parse(path)
    if torn:
        write_rows(path, rows)
    return torn


def recover(path: Path) -> None:
    """Cut off a torn last line; set a file that is damaged otherwise aside, and put back its lines that can be read.

    Only the directory's owner may do this.
    """
    try:
        repair(path)
    except DamagedFileError as error:
        lines = path.read_bytes().split(b"\n")
        logger.warning("%s; set aside as %s, the other lines are kept", error, set_aside(path).name)
        write_rows(path, [row for row in map(_row, lines) if row is not None])


def _row(line: bytes) -> Row | None:
    """The object in `line`, None if there is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _ends_with_newline(path: Path) -> bool:
    """Whether `path` ends a line, as a missing or an empty file does."""
    if not path.exists():
        return True
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _encode(row: Row) -> bytes:
    return (json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _parse(path: Path) -> tuple[list[Row], bool]:
    """The rows of `path` and whether its last line is torn (no newline at its end, or not JSON)."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], False
    *lines, tail = data.split(b"\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            # A power cut can also leave zeros where the row should be, with the newline after them.
            if number == len(lines) and not tail:
                return rows, True
            raise DamagedFileError(path, f"line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DamagedFileError(path, f"line {number} is not a JSON object")
        rows.append(row)
    return rows, bool(tail)
