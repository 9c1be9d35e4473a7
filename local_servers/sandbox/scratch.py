"""The server's folder for runs without a mount namespace, and the removal of those that killed servers left."""

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

from local_servers.sandbox.job_files import remove_tree

_PREFIX = "coderl-sandbox-"
_END_SECONDS = 5


class Scratch:
    """A folder in the system's temporary folder, locked for as long as the server lives.

    The lock is the kernel's, so a server that was killed has none: the next one removes its folder.
    """

    def __init__(self) -> None:
        self.path, self._lock = self._create()
        self._sweep()

    @staticmethod
    def _create() -> tuple[str, int]:
        """(path, descriptor that holds the lock) of a new folder."""
        while True:
            path = tempfile.mkdtemp(prefix=_PREFIX)
            # Submissions of another user pass through, and list nothing.
            Path(path).chmod(0o711)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if Path(path).exists():
                return path, lock
            # Another server swept it away before it was locked.
            os.close(lock)

    def _sweep(self) -> None:
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            # Another user's folder, or one that its own server is just removing, is not ours to judge.
            with contextlib.suppress(OSError):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if folder.stat().st_uid == os.getuid():
                        remove_tree(str(folder))
                finally:
                    os.close(lock)

    def remove(self) -> None:
        """Remove the folder; its users, which must have been told to end, may still be clearing their own part."""
        deadline = time.monotonic() + _END_SECONDS
        while Path(self.path).exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                remove_tree(self.path)
            time.sleep(0.001)
        os.close(self._lock)
