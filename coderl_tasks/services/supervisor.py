"""Starts an embedded server, watches it, restarts it on the same port, and ends it with its starter.

A server belongs to the process that started it. It runs under `guard`, which ends it when the starter's pipe closes.
A server that dies by itself, or does not answer its health check for `SILENT_S`, is restarted on its port, so that
clients which retry find it again under the same address. One that dies `MAX_QUICK_DEATHS` times in a row within
`QUICK_S` of its start, or does not come up again, stays down: `down` is set, and `fault` says why.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence, Set
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from coderl_tasks.errors import InfraError
from coderl_tasks.paths import private_folder
from coderl_tasks.server_addresses import authorization, without_credentials
from coderl_tasks.services import guard
from local_servers.interface import new_key

QUICK_S = 20.0
MAX_QUICK_DEATHS = 3
SILENT_S = 60.0
PROBE_S = 5.0
START_TIMEOUT_S = 120.0
POLL_S = 0.05
PARENT_POLL_S = 0.5
TCP_LISTEN = "0A"
LOOPBACK_ADDRESSES = {
    "0100007F",  # 127.0.0.1, as /proc writes it on a little-endian machine
    "00000000",
    "00000000000000000000000001000000",  # ::1
    "00000000000000000000000000000000",
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
}
logger = logging.getLogger(__name__)


def free_port(preferred: int = 0) -> int:
    """`preferred` if nothing listens there, else any free port of loopback."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # As servers do: else a port whose last connections are still winding down would count as taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise InfraError("no free port on 127.0.0.1")


def _listening(url: str) -> set[tuple[int, str]]:
    """(user, inode) of the sockets that listen on the port of `url` on loopback, read in /proc/net/tcp{,6}."""
    port, found = urlsplit(url).port, set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():  # a kernel without IPv6
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_rest = fields = line.split()
            address, _, number = local.rpartition(":")
            if state == TCP_LISTEN and int(number, 16) == port and address in LOOPBACK_ADDRESSES:
                found.add((int(fields[7]), fields[9]))
    return found


def listeners(url: str) -> set[int]:
    """The users (uids) who listen on the port of `url` on loopback: what answers as ours may be anybody's."""
    return {user for user, _ in _listening(url)}


def is_ours(url: str) -> bool:
    """Whether this user, and nobody else, listens on the port of `url` on loopback."""
    return listeners(url) == {os.getuid()}


def get(url: str, timeout_s: float, headers: Mapping[str, str] | None = None, most: int = -1) -> tuple[int, bytes]:
    """The status of the answer to a GET of `url`, and at most `most` bytes of a 200; 0 and nothing if there is none."""
    try:
        # In a header: urllib takes what stands before an @ for a part of the host's name.
        request = urllib.request.Request(without_credentials(url), headers={**authorization(url), **(headers or {})})
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, response.read(most)
    except urllib.error.HTTPError as error:
        return error.code, b""
    except (OSError, ValueError, HTTPException):  # refused, timed out, no address, not HTTP
        return 0, b""


def answers(url: str, expected: str = "", timeout_s: float = 2.0) -> bool:
    """Whether a GET of `url` is answered with 200 and `expected` in the first 1,000 bytes of its body."""
    status, body = get(url, timeout_s, most=1000)
    return status == HTTPStatus.OK and expected in body.decode(errors="replace")


def json_answer(url: str) -> dict[str, Any]:
    """The JSON object that a GET of `url` is answered with; empty where it is answered otherwise."""
    try:
        answer = json.loads(get(url, PROBE_S)[1])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _processes() -> Iterator[Path]:
    """The folders in /proc of the processes."""
    return (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())


def processes_with(variable: str, value: str) -> list[int]:
    """Ids of this user's live processes that were started with this environment variable, their children's included."""
    return [int(folder.name) for folder in _processes() if _was_given(folder, variable, value)]


def _was_given(process: Path, variable: str, value: str) -> bool:
    try:
        return f"{variable}={value}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False


def _is_child_with(process: Path, parent: int, sockets: Set[str]) -> bool:
    """Whether the process is a child of `parent`, and has one of these `sockets`, as /proc calls them, open."""
    try:
        # The name, which is in brackets and may hold anything, is cut off: state and parent follow it.
        after_name = (process / "stat").read_bytes().rpartition(b")")[2]
    except OSError:  # it has ended
        return False
    if int(after_name.split()[1]) != parent:
        return False
    try:
        return any(str(link.readlink()) in sockets for link in (process / "fd").iterdir())
    except PermissionError:  # a Python with capabilities hides its descriptors even from its own user
        return bool(sockets)
    except OSError:  # it has ended, or closed one meanwhile
        return False


def end_with_parent(variable: str) -> None:
    """Kills this process when its parent ends, or at once if it has ended: a live parent was given `variable` too.
    PR_SET_PDEATHSIG would fire when the thread ends that started us, which is another library's."""
    parent = os.getppid()
    if not _was_given(Path(f"/proc/{parent}"), variable, os.environ[variable]):
        os.kill(os.getpid(), signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


class EmbeddedServer:
    """One server process, as a context manager: entered when `health_path` answers; `url` is stable over restarts."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        health_path: str,
        log_file: Path,
        *,
        port: int | None = None,
        closed: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepares to run the server `command`, which takes --port; nothing is started yet. Without a `port` any free
        one is taken. A `closed` server gets a new key, without which it refuses requests. `environment` is added to
        this process's. What the server writes goes to `log_file`."""
        self.name, self.fault, self.down = name, "", threading.Event()
        # Chosen once: after a restart, clients retry at the same address.
        self.port = port or free_port()
        self.url, self.key = f"http://127.0.0.1:{self.port}", new_key() if closed else ""
        self._health_url = self.url + health_path
        # The guard is a process that ends the server when this one ends. -i: it passes on its standard input, from
        # which the server reads the key (--key -): all users can read a command line, and an environment is inherited.
        guarded = ["-i", *command, "--key", "-"] if closed else command
        self._command = [sys.executable, guard.__file__, *guarded, "--port", str(self.port)]
        self._log_file = log_file
        self._environment = {**os.environ, **(environment or {})}
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._start()
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()  # first, or the watcher would take the end for a crash and restart the server
        self._end_process()
        self._watcher.join()

    @property
    def address(self) -> str:
        """`url` with the key in it, for clients that take it from there. Not to be shown."""
        return self.url.replace("//", f"//coderl:{self.key}@") if self.key else self.url

    @property
    def pid(self) -> int:  # of the guard that holds the server
        assert self._process is not None
        return self._process.pid

    def _start(self) -> None:
        """Starts the server, waits until it is healthy. InfraError if it fails, OSError if memory or disk are short."""
        private_folder(self._log_file.parent)  # at a restart too: it may have been removed meanwhile
        # Append: the previous server's last lines explain its crash.
        with self._log_file.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,  # stays open: closing it ends the server
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        self._process = process  # set now: `_end_process` of another thread may end it while it starts
        if self.key:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended: the loop below notices
                process.stdin.write(f"{self.key}\n".encode())
        deadline = time.monotonic() + START_TIMEOUT_S
        # An answer counts only while our process lives and has the port: until it does, another server may take it.
        while not (answers(self._health_url) and self._has_port()) or process.poll() is not None:
            if process.poll() is not None or time.monotonic() > deadline or self._stopping.is_set():
                self._end_process()
                raise InfraError(self._fault_text("did not start"))
            time.sleep(POLL_S)

    def _has_port(self) -> bool:
        """Whether the server, a child of the guard, holds a socket that listens on our port."""
        listening = _listening(self.url)
        if not listening:  # where /proc does not show the sockets, nothing tells
            return True
        sockets = {f"socket:[{inode}]" for user, inode in listening if user == os.getuid()}
        return any(_is_child_with(process, self.pid, sockets) for process in _processes())

    def _fault_text(self, what: str) -> str:
        """That the server did `what`, where its log is, and the last line there, if it can be read."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self._log_file.read_text(errors="replace").strip().splitlines()
        last_words = f" ({lines[-1].strip()})" if lines else ""
        return f"the embedded {self.name} server {what}: see {self._log_file}{last_words}"

    def _end_process(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        assert process.stdin is not None
        # The guard sees it and ends the server, just as if this process had been killed: there is one way down.
        process.stdin.close()
        try:
            process.wait(guard.GRACE_S + 2)  # the guard itself kills after GRACE_S
        except subprocess.TimeoutExpired:  # it hangs: its server ends with it
            process.kill()
            process.wait()

    def _watch(self) -> None:
        """The thread that restarts the server when it ends or hangs, until it gives up: then `down` is set."""
        quick_deaths = 0
        while True:
            started = time.monotonic()
            reason = self._wait_for_trouble()
            if self._stopping.is_set():
                return
            # A server that lived longer has worked, so it resets the count and can be restarted any number of times.
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < QUICK_S else 0
            if quick_deaths >= MAX_QUICK_DEATHS:
                fault = self._fault_text("keeps dying")
                break
            logger.warning("the embedded %s server %s: restarting it on port %d", self.name, reason, self.port)
            try:
                self._start()
            except InfraError as error:
                fault = str(error)
                break
            except OSError as error:  # no memory for another process, say
                self._end_process()
                fault = self._fault_text(f"could not be restarted: {error}")
                break
            if self._stopping.is_set():  # stopped while it was coming up
                self._end_process()
                return
        if not self._stopping.is_set():  # else it did not start because it was stopped, which is no fault
            logger.error("%s", fault)
            self.fault = fault
            self.down.set()  # after `fault`: who sees it set reads why

    def _wait_for_trouble(self) -> str:
        """Waits until the process has ended, by itself or because it was silent for too long. Returns what happened."""
        process = self._process
        assert process is not None
        answered = time.monotonic()
        while True:
            try:
                return f"ended (exit {process.wait(PROBE_S)})"
            except subprocess.TimeoutExpired:
                # Silent once is busy, a training pass can hold it for seconds; silent for long it hangs.
                if answers(self._health_url, timeout_s=PROBE_S):
                    answered = time.monotonic()
                elif time.monotonic() - answered > SILENT_S and not self._stopping.is_set():
                    self._end_process()
                    return f"did not answer for {SILENT_S:.0f} s"
