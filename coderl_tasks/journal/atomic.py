"""Files that neither a crash nor a second process can spoil: how everything below a run's directory is written.

1. A whole file is written beside its place, synced to disk, then renamed over it: a crash leaves the old file or the
   new one, and perhaps a `.NAME.*.tmp` (`remove_leftovers`).
2. JSON lines are appended durably. A crash while appending leaves at most a torn last line.
3. A file that is damaged all the same (a full disk, a bad copy) raises `DamagedFileError` when it is read; `set_aside`
   keeps it for people under another name, so that its work is done again.
4. Whatever is written below a folder that this process holds (`directory_lock`) first asks whether it still does.
"""

import io
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from coderl_tasks.errors import DataError, InfraError
from coderl_tasks.journal.directory_lock import require_in_place
from coderl_tasks.paths import private_folder

Row = dict[str, Any]
MIB = 2**20
LEAST_FREE = 256 * MIB  # without so much free space nothing is started, nor a step begun: a short run takes as much
logger = logging.getLogger(__name__)


class DamagedFileError(DataError):
    """A file of the journal that cannot be what was written. `path` is the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yields an open file, which takes the place of `path` atomically when the block ends without an error. The folder
    must exist. Raises as `require_in_place`."""
    require_in_place(path)
    # In the same folder, as a rename is atomic only within a file system. Not one of tempfile's: its mode 0600
    # would outlive the rename, where the umask is to decide.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with path_in_errors(path), temporary.open("xb") as file:
            yield file
            file.flush()
            # The data before the name: else a power cut can leave an empty file under the final name.
            os.fsync(file.fileno())
        require_in_place(path)  # again: on a file system that was away, the lines above may have taken minutes
        temporary.replace(path)
    except BaseException:
        # BaseException: Ctrl-C and a cancelled task must leave no temporary file either.
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """An open file for what a user wants at `path`: `replacing`, through links; a device or a pipe is written to."""
    if path.exists() and not path.is_file():
        # As root, a rename would put a file in the place of /dev/stdout.
        with path_in_errors(path), path.open("wb") as file:
            yield file
    else:
        with replacing(path.resolve()) as file:
            yield file


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Put `data` at `path` (see `replacing`)."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def path_in_errors(path: Path) -> Iterator[None]:
    """Put `path` into an OSError of the block that names no file, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    except pl.exceptions.ComputeError as error:
        # polars says in words alone what the system said: a full disk is to be known as one.
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Put `value` at `path` as indented JSON. NaN and infinities are refused (ValueError): JSON has none."""
    write_bytes(path, f"{json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)}\n".encode())


def write_parquet(path: Path, frame: pl.DataFrame, rows_per_group: int | None = None) -> None:
    """Put `frame` at `path` as zstd parquet; the same frame gives the same bytes. With `rows_per_group` it is encoded
    so many rows at a time, and takes memory for these alone."""
    # Into the file and not by way of `write_bytes`: a step of long completions would be there twice more.
    with replacing(path) as file:
        frame.write_parquet(file, compression="zstd", statistics=True, row_group_size=rows_per_group)


def _regular_file_bytes(path: Path) -> bytes:
    """The bytes of the file at `path`. Refuses a pipe, which would block: the folder may come from somebody else."""
    if path.exists() and not path.is_file():
        raise DamagedFileError(path, "no regular file")
    return path.read_bytes()


def require_own(path: Path) -> None:
    """Raise DamagedFileError if `path` is a link: in a directory of others it can lead to any file of the user's."""
    if path.is_symlink():
        raise DamagedFileError(path, f"a link to {path.readlink()}, which would be written to")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object at `path`. Raises FileNotFoundError, or DamagedFileError if it holds anything else."""
    data = _regular_file_bytes(path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(path, f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamagedFileError(path, f"a JSON object was expected, not {type(value).__name__}")
    return value


def try_read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object at `path`, None if it is missing (also: below a file) or damaged."""
    with suppress(FileNotFoundError, NotADirectoryError, DamagedFileError):
        return read_json(path)
    return None


def read_parquet(
    path: Path,
    schema: Mapping[str, pl.DataType] | None = None,
    *,
    others: bool = True,
    required: Collection[str] | None = None,
) -> pl.DataFrame:
    """Returns the table at `path`, checked against the column types in `schema` (None: unchecked).

    Columns of `schema` that an older file may lack, those not `required` (None: all are), are filled with nulls, and
    the columns put in the order of `schema`. `others=False` skips columns outside `schema`. Raises FileNotFoundError,
    or DamagedFileError for a file that is not parquet, lacks a required column or has one of another type."""
    data = _regular_file_bytes(path)
    try:
        wanted = None  # all columns
        if schema is not None and not others:
            wanted = [name for name in pl.read_parquet_schema(data) if name in schema]
        frame = pl.read_parquet(io.BytesIO(data), columns=wanted)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        # polars panics on some truncated files, and its PanicException is a BaseException.
        raise DamagedFileError(path, f"not parquet ({' '.join(str(error).split())[:200]})") from error
    schema = schema or {}
    fillable = [name for name in schema if required is not None and name not in {*frame.columns, *required}]
    for name, kind in schema.items():
        if name not in fillable and frame.schema.get(name) != kind:  # get: None if the file lacks it
            raise DamagedFileError(path, f"column {name!r} is {frame.schema.get(name)}, expected {kind}")
    if not fillable:
        return frame
    filled = frame.with_columns(pl.lit(None, schema[name]).alias(name) for name in fillable)
    return filled.select(*schema, *(name for name in frame.columns if name not in schema))


def scan_parquet(files: Path | bytes | list[Path], schema: Mapping[str, pl.DataType] | None = None) -> pl.LazyFrame:
    """The rows of parquet files, lazily. Names are taken as they are: a directory's own brackets are no pattern. With
    `schema` the rows have its columns, null where a file (of an older run) lacks one."""
    columns = "raise" if schema is None else "insert"
    return pl.scan_parquet(files, schema=schema, missing_columns=columns, glob=False)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged-N in its folder and return the new path."""
    number = 1
    # Numbered: work that was repeated may be damaged again, and what was set aside before it is kept too.
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
    """Create `folder` and its parents, durably, for this user alone if `private`. Raises as `require_in_place`."""
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


def free_bytes(folder: Path) -> int:
    """Free bytes where `folder` is or would be."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def require_room(folders: Iterable[Path], more: int = 0) -> None:
    """Raise InfraError, which is worth a retry, if one of `folders` is on a disk with less than LEAST_FREE and `more`
    bytes left."""
    for folder in folders:
        free, least = free_bytes(folder), LEAST_FREE + more
        if free < least:
            raise InfraError(
                f"{free / MIB:.0f} MiB are free at {folder}, and nothing is begun with less than {least / MIB:.0f}: "
                "free some space (coderl clean)"
            )


def read_rows(path: Path) -> list[Row]:
    """The objects in `path`, none if it is missing, without a torn last line. Raises as `_parse_rows`."""
    return _parse_rows(path)[0]


def append_row(path: Path, row: Row) -> None:
    """Append `row` and return when it is on disk. A last line without its newline is cut off first."""
    require_in_place(path)
    require_own(path)
    torn = False
    if path.exists():
        with path.open("rb") as file:
            if size := file.seek(0, os.SEEK_END):
                # One byte and not the file: a long run appends thousands of rows, and would read more with each.
                file.seek(size - 1)
                torn = file.read(1) != b"\n"
    # A row appended to a torn line would merge with it: damage before the last line, which no crash explains.
    if torn:
        repair(path)
    with path_in_errors(path), path.open("ab") as file:
        file.write(_encode(row))
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: Path, rows: list[Row]) -> None:
    """Replace the whole file by `rows`, atomically."""
    write_bytes(path, b"".join(map(_encode, rows)))


def repair(path: Path) -> bool:
    """Cut off a torn last line; whether there was one. Only the directory's owner may do this."""
    # A line that is damaged and not the last one raises: no crash of ours leaves that, and rows after it are good.
    rows, torn = _parse_rows(path)
    if torn:
        write_rows(path, rows)
    return torn


def recover(path: Path) -> None:
    """As `repair`; a file that is damaged otherwise is set aside, and its lines that can be read are put back."""
    try:
        repair(path)
    except DamagedFileError as error:
        rows: list[Row] = []
        for line in _regular_file_bytes(path).split(b"\n"):
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                rows += [row] if isinstance(row, dict) else []
        logger.warning("%s; set aside as %s, the other lines are kept", error, set_aside(path).name)
        write_rows(path, rows)


def _encode(row: Row) -> bytes:
    return (json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _parse_rows(path: Path) -> tuple[list[Row], bool]:
    """The rows of `path` without a torn last line (no newline at its end, or not JSON), and whether there was one. A
    missing file has no rows. Raises DamagedFileError for any other line that is not a JSON object."""
    try:
        data = _regular_file_bytes(path)
    except FileNotFoundError:
        return [], False
    *lines, tail = data.split(b"\n")  # `tail`: what follows the last newline, empty in a whole file
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            # A power cut can leave zeros before the final newline: that too is a torn line.
            if number == len(lines) and not tail:
                return rows, True
            raise DamagedFileError(path, f"line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DamagedFileError(path, f"line {number} is not a JSON object")
        rows.append(row)
    # Drop a tail without its newline even if it is complete: nobody relies on it, as `append_row` has not returned.
    # This also lets readers work without the lock.
    return rows, bool(tail)
