"""One process at a time on a directory.

POSIX record locks (`lockf`) end with the process that took them, however it ends; a forked child does not keep them, as
it would keep its parent's `flock`. They do not tell two users in one process apart, so a table in the process does.
"""

import fcntl
import json
import os
import socket
import struct
import threading
from datetime import datetime
from pathlib import Path
from typing import IO

from coderl_tasks.errors import ConfigError

_held: dict[Path, int] = {}
"""Lock file -> the process that holds it, so that what a forked child inherits does not count."""
_held_guard = threading.Lock()
_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


class DirectoryBusyError(ConfigError):
    """Another run is working in the directory."""


class DirectoryLock:
    """Exclusive right to write in `folder`, from construction to `release` or the end of the process."""

    def __init__(self, folder: Path, name: str = "run.lock", instead: str = "choose another log_path") -> None:
        """Take the lock, a file `name`, at once or raise DirectoryBusyError, which names the holder and ends with what
        to do `instead`."""
        self._key = folder.resolve() / name
        self._owner = os.getpid()
        with _held_guard:
            # Opening the file a second time would end this process's lock on closing it again.
            if _held.get(self._key) == self._owner:
                raise _busy(folder, "another run of this process", instead)
            self._file: IO[str] | None = self._key.open("a+")
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(self._file)
                self._file.close()
                raise _busy(folder, holder, instead) from error
            _held[self._key] = self._owner
        self._file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%F %T}"}, self._file)
        self._file.flush()

    def release(self) -> None:
        """Give the directory free; a second call, or one in a forked child, does nothing."""
        if self._file is None or self._owner != os.getpid():
            return
        with _held_guard:
            self._file.close()
            self._file = None
            del _held[self._key]


def held_by(folder: Path) -> str | None:
    """Who holds `folder`, None if nobody does. It asks without taking the lock, so that nobody finds it taken."""
    key = folder.resolve() / "run.lock"
    with _held_guard:
        # To open the file here, and to close it again, would end this process's own lock.
        if _held.get(key) == os.getpid():
            return "this process"
        if not key.is_file():
            return None
        with key.open() as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            return None if kind == fcntl.F_UNLCK else _holder(file)


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        holder = json.load(file)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):  # its holder is just writing it
        return "another process"


def _busy(folder: Path, holder: str, instead: str) -> DirectoryBusyError:
    return DirectoryBusyError(f"{folder} is in use by {holder}: wait for it, stop it, or {instead}")
