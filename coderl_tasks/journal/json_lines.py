"""JSON lines, one object per line, appended durably. A crash while appending leaves at most a torn last line."""

import json
import logging
import os
from pathlib import Path
from typing import Any

from coderl_tasks.journal.atomic import DamagedFileError, naming, set_aside, write_bytes
from coderl_tasks.journal.lock import require_in_place

Row = dict[str, Any]
logger = logging.getLogger(__name__)


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
