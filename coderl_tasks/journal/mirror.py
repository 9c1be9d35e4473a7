"""A folder whose record lives elsewhere too, so that another machine can go on where this one was killed.

1. Work is done in a local folder, as always: atomic files, one writer. What an address other than a local path holds is
   fetched before, and what changes is sent there: when the caller says so, and at the end, even after an error.
2. Only whole files are sent (atomic writes leave no others), new ones before old ones are deleted. What was not yet
   sent when a machine died is done again.
"""

import asyncio
import hashlib
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from coderl_tasks.addresses import explained, filesystem, joined, local_path, make_folder_at
from coderl_tasks.errors import InfraError
from coderl_tasks.journal.atomic import DirectoryLock, make_folder
from coderl_tasks.paths import coderl_home

logger = logging.getLogger(__name__)


Stamp = tuple[int, int, int]
"""When a file was written (ns), its inode and size: what tells whether it has been written again. The file renamed into
place may have the old one's size, and its time within a clock tick."""


class Mirror:
    """The files of the folder `local`, kept equal to those at `address` by `fetch` and `send`."""

    def __init__(self, address: str, local: Path) -> None:
        self._address, self._local = address, local
        self._fs, self._root = filesystem(address)
        self._sent: dict[str, Stamp] = {}
        self._sending = threading.Lock()

    def fetch(self) -> None:
        """Make the local folder hold what is at the address, and nothing else."""
        # The address alone is the record. A killed process may have left files here that it never sent.
        shutil.rmtree(self._local, ignore_errors=True)
        make_folder(self._local)
        with explained(self._address):
            # Another machine may have written there since this process last listed it.
            self._fs.invalidate_cache()
            for remote in self._fs.find(self._root) if self._fs.exists(self._root) else []:
                path = self._local / remote.removeprefix(self._root).lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(remote, str(path))
        self._sent = self._stamps()

    def send(self) -> None:
        """Send what is new or has changed since the last call, then delete there what is gone here."""
        # One at a time: cancelling `_send_news` does not end the thread in which it sends, and the last send follows.
        with self._sending, explained(self._address):
            # Before the transfer: a file that is rewritten meanwhile then has another stamp, and is sent again.
            now = self._stamps()
            # In the order in which they were written: what says whose groups these are is there before them, and a kill
            # in between leaves no groups that belong to nothing.
            for name, stamp in sorted(now.items(), key=lambda item: item[1][0]):
                if self._sent.get(name) != stamp and self._put(name):
                    self._sent[name] = stamp
            # Last: whoever takes over in between finds a file, what replaced it, or both, but never neither.
            for name in [name for name in self._sent if name not in now]:
                self._fs.rm_file(joined(self._root, name))
                del self._sent[name]

    def _put(self, name: str) -> bool:
        """Send one file; False if it is gone."""
        source, target = self._local / name, joined(self._root, name)
        make_folder_at(self._fs, target.rpartition("/")[0])
        try:
            self._fs.put_file(str(source), target)
        except FileNotFoundError:
            # Deleted since it was listed, as groups are once one file holds them all.
            if source.exists():
                raise
            return False
        return True

    def _stamps(self) -> dict[str, Stamp]:
        """Of each file, by name; one that vanishes meanwhile is left out."""
        stamps = {}
        for path in sorted(self._local.rglob("*")):
            if path.name.startswith(".") or path.name == "run.lock":
                continue
            with suppress(FileNotFoundError):
                stat = path.stat()
                if S_ISREG(stat.st_mode):
                    name = path.relative_to(self._local).as_posix()
                    stamps[name] = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        return stamps


@asynccontextmanager
async def recorded_at(address: str) -> AsyncIterator[tuple[Path, Callable[[], None]]]:
    """Yields a folder to work in, the one at `address` if that is local, else a copy, and a function that asks for what
    is new in a copy to be sent there. One process at a time may work in it (else DirectoryBusyError); across machines
    the caller must ensure that."""
    original = local_path(address)
    local = original or coderl_home() / "mirrors" / hashlib.sha256(address.encode()).hexdigest()[:16]
    news = asyncio.Event()
    # A copy's lock lies beside it: `fetch` deletes the copy.
    lock = DirectoryLock(make_folder(local) if original else make_folder(local.parent / f"{local.name}.lock"))
    try:
        if original is not None:
            yield original, news.set
            return
        mirror = Mirror(address, local)
        await asyncio.to_thread(mirror.fetch)
        sending = asyncio.create_task(_send_news(mirror, news))
        try:
            yield local, news.set
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await asyncio.to_thread(mirror.send)
        shutil.rmtree(local)  # only if the block and the last send succeeded: else it holds what was not sent
    finally:
        lock.release()


async def _send_news(mirror: Mirror, news: asyncio.Event) -> None:
    while True:
        await news.wait()
        news.clear()
        try:
            await asyncio.to_thread(mirror.send)
        except InfraError as error:  # sent with the next news, or at the end, where a failure counts
            logger.warning("not yet sent: %s", error)
