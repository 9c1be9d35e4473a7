"""Several hosts in one folder: a host is a process with a name of its own, and locks that no other sees."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coderl_tasks.journal import directory_lock
from coderl_tasks.journal.atomic import write_bytes
from coderl_tasks.journal.directory_lock import DirectoryBusyError, DirectoryLock, DirectoryMovedError, held_by

BEAT_S, LEASE_S = 0.1, 1.0
HOST = f"""
import fcntl, socket, sys
from pathlib import Path
socket.gethostname = lambda: sys.argv[1]
fcntl.lockf = lambda *_: None  # as on a file system that keeps locks to one host
from coderl_tasks.journal import directory_lock
directory_lock.BEAT_S, directory_lock.LEASE_S = {BEAT_S}, {LEASE_S}
from coderl_tasks.journal.atomic import write_bytes
folder = Path(sys.argv[2])
sys.stdin.readline()
try:
    lock = directory_lock.DirectoryLock(folder)
    print("held", flush=True)
    for line in sys.stdin:
        if line == "write\\n":
            write_bytes(folder / "written", sys.argv[1].encode())
            print("written", flush=True)
        else:
            lock.release()
            print("released", flush=True)
except directory_lock.ConfigError as error:
    print(error, flush=True)
"""
"""A process on the host of this name: it takes a folder when it is told to, and does what each line says."""


class Host:
    """A process on another host."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, "-c", HOST, name, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Host]]:
    monkeypatch.setattr(directory_lock, "BEAT_S", BEAT_S)
    monkeypatch.setattr(directory_lock, "LEASE_S", LEASE_S)
    with ExitStack() as stack:

        @contextmanager
        def living(name: str) -> Iterator[Host]:
            started = Host(name, tmp_path)
            try:
                yield started
            finally:
                started.signal(signal.SIGKILL)

        yield lambda name: stack.enter_context(living(name))


@pytest.fixture
def lost(host: Callable[[str], Host]) -> Host:
    """A host that is gone with the folder in its hands."""
    holder = host("host-a")
    assert holder.ask("take") == "held"
    holder.signal(signal.SIGKILL)
    return holder


def test_a_live_holder_on_another_host_is_named_and_keeps_the_folder(
    host: Callable[[str], Host], tmp_path: Path
) -> None:
    other = host("host-b")
    assert other.ask("take") == "held"
    in_words = f"process {other.process.pid} on host-b since "
    assert (held_by(tmp_path) or "").startswith(in_words)
    with pytest.raises(DirectoryBusyError, match=f"in use by {in_words}.*: wait for it, stop it, or"):
        DirectoryLock(tmp_path)
    assert other.ask("write") == "written"


def test_a_folder_that_was_released_is_not_waited_for(
    host: Callable[[str], Host], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = host("host-b")
    assert [other.ask("take"), other.ask("release")] == ["held", "released"]
    assert held_by(tmp_path) is None
    DirectoryLock(tmp_path).release()
    assert "sign of life" not in caplog.text


def test_the_folder_of_a_lost_host_is_taken_after_its_lease(
    lost: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DirectoryLock(tmp_path).release()
    assert f"was held by process {lost.process.pid} on host-a since" in caplog.text
    assert f"taken over unless it gives a sign of life within {LEASE_S:g} s" in caplog.text


def test_a_host_that_was_stopped_for_longer_writes_nothing_more(host: Callable[[str], Host], tmp_path: Path) -> None:
    other = host("host-b")
    assert [other.ask("take"), other.ask("write")] == ["held", "written"]
    other.signal(signal.SIGSTOP)
    lock = DirectoryLock(tmp_path)
    other.signal(signal.SIGCONT)
    assert f"was taken over by process {os.getpid()} on " in other.ask("write")
    write_bytes(tmp_path / "written", b"here")
    assert (tmp_path / "written").read_bytes() == b"here"
    lock.release()


@pytest.mark.usefixtures("lost")
def test_one_of_two_hosts_gets_the_folder_of_a_lost_one(host: Callable[[str], Host]) -> None:
    others = [host("host-b"), host("host-c")]
    for other in others:
        other.tell("take")
    answers = [other.answer() for other in others]
    assert answers.count("held") == 1
    assert any("is in use by process" in answer for answer in answers)


@pytest.mark.usefixtures("lost")
def test_a_lock_that_outlives_its_host_is_waited_for_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped_at = time.monotonic() + 2 * LEASE_S  # when the file server lets go of it
    taken = directory_lock._lock
    monkeypatch.setattr(directory_lock, "_lock", lambda file: time.monotonic() > dropped_at and taken(file))
    monkeypatch.setattr(directory_lock, "OUTLIVED_S", LEASE_S)
    with pytest.raises(DirectoryBusyError, match="on host-a"):
        DirectoryLock(tmp_path)
    monkeypatch.setattr(directory_lock, "OUTLIVED_S", 60)
    DirectoryLock(tmp_path).release()


def test_a_folder_taken_over_here_is_known_before_the_next_write(host: Callable[[str], Host], tmp_path: Path) -> None:
    # This process does not come to beat, as on a machine that sleeps; and then it is the other one that holds it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory_lock, "BEAT_S", 3600)
        lock = DirectoryLock(tmp_path)
    other = host("host-b")
    assert other.ask("take") == "held"
    directory_lock._held[tmp_path / "run.lock"].beaten -= LEASE_S
    with pytest.raises(DirectoryMovedError, match=f"taken over by process {other.process.pid} on host-b"):
        write_bytes(tmp_path / "written", b"here")
    lock.release()
    assert other.ask("write") == "written"
