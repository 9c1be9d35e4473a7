"""One process at a time on a directory.

POSIX record locks (`lockf`) end with the process that took them, however it ends; a forked child does not keep them, as
it would keep its parent's `flock`. They do not tell two users in one process apart, so a table in the process does.

A lock is on the folder, not on its path: a folder that is moved away stays locked, and nothing holds what is created
in its place. So whatever is written below a held folder first asks whether it is still there (`require_in_place`).
"""

import fcntl
import json
import os
import socket
import struct
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from coderl_tasks.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Hold:
    """A folder that is held: by which process, so that what a forked child inherits does not count; its device and
    inode; and the descriptor of its lock file, which knows where the folder is now."""

    process: int
    identity: tuple[int, int]
    descriptor: int


_held: dict[Path, _Hold] = {}
"""By lock file."""
_held_guard = threading.Lock()
RUN_LOCK = "run.lock"
_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


class DirectoryBusyError(ConfigError):
    """Another run is working in the directory."""


class DirectoryMovedError(ConfigError):
    """The directory that this process works in is not where it was."""


class DirectoryLock:
    """Exclusive right to write in `folder`, from construction to `release` or the end of the process."""

    def __init__(self, folder: Path, name: str = RUN_LOCK, instead: str = "choose another log_path") -> None:
        """Take the lock, a file `name`, at once or raise DirectoryBusyError, which names the holder and ends with what
        to do `instead`."""
        self._key = folder.resolve() / name
        self._owner = os.getpid()
        with _held_guard:
            # Opening the file a second time would end this process's lock on closing it again.
            if _is_held(self._key):
                raise _busy(folder, "another run of this process", instead)
            # "a+", not "w": a process that is refused the lock must not empty the file, which names the holder.
            self._file: IO[str] | None = self._key.open("a+")
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(self._file)
                self._file.close()
                raise _busy(folder, holder, instead) from error
            identity = _identity(self._key.parent)
            assert identity is not None  # its lock file has just been opened
            _held[self._key] = _Hold(self._owner, identity, self._file.fileno())
        self._file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%F %T}"}, self._file)
        self._file.flush()

    def release(self) -> None:
        """Release the directory; a second call, or one in a forked child, does nothing."""
        if self._file is None or self._owner != os.getpid():
            return
        with _held_guard:
            # The file stays: were it removed, a process that has it open could lock a file that nobody else finds.
            self._file.close()
            self._file = None
            del _held[self._key]


def held_by(folder: Path, name: str = RUN_LOCK) -> str | None:
    """Who holds `folder` by its lock file `name`, None if nobody does. It asks without taking the lock, so that nobody
    finds it taken."""
    key = folder.resolve() / name
    with _held_guard:
        # To open the file here, and to close it again, would end this process's own lock.
        if _is_held(key):
            return "this process"
        if not key.is_file():
            return None
        with key.open() as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            return None if kind == fcntl.F_UNLCK else _holder(file)


def require_in_place(path: Path) -> None:
    """Raise DirectoryMovedError if `path` lies in a folder that this process holds, and that has been moved, removed or
    replaced since: no lock would cover what is written there."""
    place = path.absolute()
    # A copy, since other threads take and release locks meanwhile.
    for key, hold in list(_held.items()):
        folder = key.parent
        if hold.process != os.getpid() or not place.is_relative_to(folder) or _identity(folder) == hold.identity:
            continue
        now = Path(f"/proc/self/fd/{hold.descriptor}").readlink()
        if now == key:  # of a file system that numbers its inodes anew
            continue
        gone = now.name.endswith(" (deleted)")
        raise DirectoryMovedError(
            f"{folder} was {'removed' if gone else f'moved to {now.parent}'} while this process worked there: what was "
            f"recorded until then is {'lost' if gone else 'in its new place: move it back, or go on there'}"
        )


def _is_held(key: Path) -> bool:
    return key in _held and _held[key].process == os.getpid()


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells the folder at this path from another one put in its place; None if there is none."""
    try:
        stat = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_dev, stat.st_ino


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        holder = json.load(file)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):  # its holder is just writing it
        return "another process"


def _busy(folder: Path, holder: str, instead: str) -> DirectoryBusyError:
    return DirectoryBusyError(f"{folder} is in use by {holder}: wait for it, stop it, or {instead}")
