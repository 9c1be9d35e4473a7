"""One process at a time works in a folder, whichever host it is on.

1. On one host the kernel decides, by a POSIX record lock (`lockf`) on a file in the folder. It ends with the process
   that took it; a forked child does not keep it, as it would keep its parent's `flock`. It does not tell two users in
   one process apart, so a table in the process does.
2. Between hosts it may not be enough: some network file systems keep such a lock to one host, others keep it for
   minutes after its host is gone. So the holder writes its record into the lock file anew every BEAT_S (a lease). A
   process on another host takes the folder over once it has seen no beat for LEASE_S, by its own clock (clocks of
   hosts differ).
3. Whoever writes in the folder first asks whether this process still holds it (`require_in_place`): another host may
   have taken it over while this one was stopped or without a network.
"""

import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from coderl_tasks.errors import ConfigError, InfraError

RUN_LOCK = "run.lock"
BEAT_S, LEASE_S = 1.0, 6.0
OUTLIVED_S = 180.0  # how long the lock of a host that is gone may outlive it: NFS servers drop it after 90 s or so
_RECORD_BYTES = 256  # the file keeps its size, so that a beat needs no room on the disk
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process
logger = logging.getLogger(__name__)


class DirectoryBusyError(ConfigError):
    """Another run is working in the directory."""


class DirectoryMovedError(ConfigError):
    """The directory that this process works in is not where it was."""


class DirectoryTakenError(DirectoryMovedError):
    """Another process has taken over the directory that this process works in."""


@cache
def _this_host() -> dict[str, str]:
    """What tells this host from others. Two containers on one machine differ by name, as two machines do."""
    return {"host": socket.gethostname(), "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}


_now = partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # seconds that go on while the machine sleeps


@dataclass(slots=True)
class _Hold:
    """A folder that this process holds: what tells it from another one put in its place, and the descriptor of its lock
    file. `process` is the holder's: a forked child inherits the table of holds, but not the locks."""

    process: int
    folder: os.stat_result
    descriptor: int
    record: dict[str, Any]
    beats: int = 0
    beaten: float = field(default_factory=_now)
    taken_by: str | None = None  # the holder that the file names in our place
    released: threading.Event = field(default_factory=threading.Event)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def beat(self) -> None:
        """Show in the lock file that the holder lives; or note who else has taken the folder."""
        with self.guard:
            if self.taken_by is not None or self.released.is_set():
                return
            there = _read(self.descriptor)
            if self.beats and there.get("id") != self.record["id"]:
                self.taken_by = _in_words(there)
                return
            self.beats += 1
            self.write({"beat": self.beats})
            self.beaten = _now()

    def beat_on(self) -> None:
        """Beat until the folder is released. In a thread of its own: a file system that hangs must hold up no other."""
        while not self.released.wait(BEAT_S):
            try:
                self.beat()
            except OSError as error:  # as the next write in the folder will, which counts
                logger.debug("no beat in the folder held since %s: %s", self.record["since"], error)

    def write(self, more: dict[str, Any]) -> None:
        data = json.dumps(self.record | more).encode().ljust(_RECORD_BYTES - 1) + b"\n"
        os.pwrite(self.descriptor, data, 0)
        if os.fstat(self.descriptor).st_size != len(data):  # another version's
            os.ftruncate(self.descriptor, len(data))
        os.fdatasync(self.descriptor)  # to the other hosts


_held: dict[Path, _Hold] = {}  # by lock file
_held_guard = threading.Lock()


class DirectoryLock(AbstractContextManager["DirectoryLock"]):
    """Exclusive right to write in `folder`, from construction to `release`, the end of a `with` block or the end of the
    process."""

    def __init__(self, folder: Path, name: str = RUN_LOCK, instead: str = "choose another log_path") -> None:
        """Take the lock on file `name` of `folder`, or raise DirectoryBusyError, which names the holder and says what
        to do `instead`.

        If a process of this host holds the lock, the error comes at once. If the record of a holder on another host
        stays the same for LEASE_S, the lock is taken over; if the file system then still keeps the lock of the dead
        host, this waits for up to OUTLIVED_S."""
        self._key = folder.resolve() / name
        first_record: dict[str, Any] | None = None  # of a holder on another host, as first read
        first_read = begun = _now()
        while True:
            with _held_guard:
                # Before opening the file: closing any descriptor of it would end this process's POSIX lock.
                if _is_held(self._key):
                    raise _busy_error(folder, "another run of this process", instead)
                descriptor = os.open(self._key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    is_locked, record = _lock(descriptor), _read(descriptor)
                    is_silent = record == first_record and _now() - first_read > LEASE_S  # no sign of life
                    if is_locked and (is_silent or not _is_of_other_host(record)):
                        self._hold(descriptor)
                        break
                except BaseException:
                    _held.pop(self._key, None)  # `_hold` enters it before its first beat, which may have failed
                    os.close(descriptor)
                    raise
                os.close(descriptor)
            is_held_here = not _is_of_other_host(record)  # then the kernel has refused the lock: the holder lives
            gives_sign_of_life = first_record is not None and record != first_record
            has_waited_longest = _now() - begun > OUTLIVED_S
            if is_held_here or gives_sign_of_life or has_waited_longest:
                raise _busy_error(folder, _in_words(record), instead)
            if first_record is None:
                unless = f"it is taken over unless it gives a sign of life within {LEASE_S:g} s"
                logger.warning("%s was held by %s: %s", folder, _in_words(record), unless)
                first_record, first_read = record, _now()
            time.sleep(BEAT_S / 2)
        if first_record is not None:  # taken over, perhaps by a third host at the same moment
            self._confirm(folder, instead)

    def _hold(self, descriptor: int) -> None:
        since = f"{datetime.now():%F %T}"
        record = {"pid": os.getpid(), **_this_host(), "since": since, "id": secrets.token_hex(8)}
        hold = _held[self._key] = _Hold(os.getpid(), self._key.parent.stat(), descriptor, record)
        hold.beat()
        threading.Thread(target=hold.beat_on, name="directory-lock", daemon=True).start()
        self._owner = os.getpid()  # a forked child has another id, and does not have the lock

    def _confirm(self, folder: Path, instead: str) -> None:
        """After a takeover: of two hosts that do so at once, the last to write is the holder."""
        time.sleep(BEAT_S)  # longer than the other one takes from its last look to its write
        (hold := _held[self._key]).beat()
        if hold.taken_by is not None:
            self.release()
            raise _busy_error(folder, hold.taken_by, instead)

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the directory; a second call, or one in a forked child, does nothing."""
        if self._owner != os.getpid():
            return
        # Closed before another thread may open the file: closing it later would end that one's lock.
        with _held_guard, (hold := _held.pop(self._key)).guard:
            self._owner = 0
            hold.released.set()
            if hold.taken_by is None:
                with suppress(OSError):  # the next one on another host then waits for its lease
                    hold.write({"released": True})
            # The file stays: were it removed, a process that has it open could lock a file that nobody else finds.
            os.close(hold.descriptor)


def held_by(folder: Path, name: str = RUN_LOCK) -> str | None:
    """Who holds `folder` by its lock file `name`, None if nobody does; asked without taking the lock. That a holder on
    another host lives is guessed by the time of its last sign of life."""
    key = folder.resolve() / name
    with _held_guard:
        # To open the file here, and to close it again, would end this process's own lock.
        if _is_held(key):
            return "this process"
        if not key.is_file():
            return None
        with key.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            there = _read(file.fileno())
            lives = _is_of_other_host(there) and abs(time.time() - os.fstat(file.fileno()).st_mtime) < LEASE_S
            return _in_words(there) if lives or kind != fcntl.F_UNLCK else None


def require_in_place(path: Path) -> None:
    """Call this before writing at `path`: a lock follows its folder, not the path. If this process has locked `path` or
    a folder above it, raises DirectoryMovedError where that folder was moved, removed or replaced since,
    DirectoryTakenError where another host has taken it over, InfraError where the file server dropped the lock."""
    written = path.absolute()
    # `_held` is by lock file. Iterate over a copy: other threads take and release locks meanwhile.
    for lock_path, hold in list(_held.items()):
        folder = lock_path.parent
        # A forked child inherits the table of its parent, but not the locks.
        if hold.process != os.getpid() or not written.is_relative_to(folder):
            continue
        # The thread that beats is late (the machine slept, say). A beat notices a takeover.
        if hold.taken_by is None and _now() - hold.beaten > LEASE_S / 2:
            try:
                hold.beat()
            except OSError as error:  # a file server drops the lock of a host that was away: it may be another's by now
                raise InfraError(f"the lock of {folder} is lost: {error.strerror or error}") from error
        if hold.taken_by is not None:
            raise DirectoryTakenError(
                f"{folder} was taken over by {hold.taken_by}, as this process gave no sign of life for {LEASE_S:g} s: "
                "the run continues there, with everything that was recorded"
            )
        with suppress(FileNotFoundError, NotADirectoryError):  # then it was moved or removed
            if os.path.samestat(folder.stat(), hold.folder):
                continue
        lock_file = Path(f"/proc/self/fd/{hold.descriptor}").readlink()  # where Linux says that it is now
        if lock_file == lock_path:  # still in place: some file systems renumber inodes
            continue
        removed = lock_file.name.endswith(" (deleted)")  # Linux adds this to the name
        raise DirectoryMovedError(
            f"{folder} was {'removed' if removed else f'moved to {lock_file.parent}'} while this process worked there: "
            f"what was recorded until then is {'lost' if removed else 'in its new place: move it back, or go on there'}"
        )


def _is_held(key: Path) -> bool:
    return key in _held and _held[key].process == os.getpid()


def _lock(descriptor: int) -> bool:
    """Whether this process has the kernel's lock; where the file system knows none, the lease alone decides."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
    return True


def _read(descriptor: int) -> dict[str, Any]:
    """What the lock file says, empty if it is new."""
    data = os.pread(descriptor, 4 * _RECORD_BYTES, 0)
    try:
        there = json.loads(data or b"{}")
    except ValueError:  # its holder is just writing it
        there = None
    return there if isinstance(there, dict) else {"host": None}


def _is_of_other_host(record: dict[str, Any]) -> bool:
    """Whether the record is of a holder on another host that has not released the folder."""
    ours = _this_host()
    return "host" in record and not record.get("released") and any(record.get(key) != ours[key] for key in ours)


def _in_words(there: dict[str, Any]) -> str:
    try:
        return f"process {there['pid']} on {there['host']} since {there['since']}"
    except KeyError:
        return "another process"


def _busy_error(folder: Path, holder: str, instead: str) -> DirectoryBusyError:
    return DirectoryBusyError(f"{folder} is in use by {holder}: wait for it, stop it, or {instead}")
