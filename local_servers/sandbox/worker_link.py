"""The server's end of a worker: hands it jobs, drains what a run prints, and reads the files that it leaves."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from local_servers.sandbox import job_files

MAX_STDOUT_BYTES = 16 << 20
MAX_STDERR_BYTES = 1 << 20
MAX_FETCH_BYTES = 64 << 20
SCRATCH_BYTES = 128 << 20  # what a program may write, beside the files that came with it
_CHUNK = 1 << 18
_DRAIN_AFTER_S = 0.02
_REPLY_BYTES = 1 << 16


class Unplaceable(ValueError):
    """A file of the job cannot be where its name says."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: times in seconds, memory in MiB; `files` are written before, `fetch` read back after."""

    code: bytes
    stdin: bytes
    files: dict[str, bytes]
    fetch: list[str]
    timeout_s: float
    memory_mib: int

    @property
    def payload_bytes(self) -> int:
        return len(self.code) + len(self.stdin) + sum(map(len, self.files.values()))

    def message(self, prepared_number: int) -> bytes:
        """What goes to the worker; without the code where that is the prepared program of this number (0: none)."""
        terms = job_files.Terms(self.timeout_s, self.memory_mib, SCRATCH_BYTES + self.payload_bytes, prepared_number)
        return terms.message(b"" if prepared_number else self.code, self.stdin, self.files)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave; `return_code` is None after a time-out and -n after signal n."""

    return_code: int | None
    execution_time: float
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes]


class Output:
    """What comes out of a pipe; beyond `cap` bytes it is drained and forgotten."""

    def __init__(self, pipe: int, cap: int) -> None:
        self.pipe, self._cap = pipe, cap
        self._data = bytearray()
        os.set_blocking(pipe, False)

    def drain(self) -> bool:
        """Read what is there; False where there is nothing (more)."""
        try:
            chunk = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return False
        # Read on beyond the cap: a pipe that nobody drains would stop the program, and its time run out.
        self._data += chunk[: self._cap - len(self._data)]
        if not chunk:
            asyncio.get_running_loop().remove_reader(self.pipe)
        return bool(chunk)

    def rest(self) -> bytes:
        """All of it, once no process can write any more."""
        while self.drain():
            pass
        return bytes(self._data)


class HandedOver:
    """A run's working directory, and the pipes that it writes to, which it hands over when it begins. They are looked
    at when the run has ended, or lasts: most are over soon, and what they print fits into a pipe."""

    def __init__(self, handles: socket.socket) -> None:
        self._handles = handles
        self._workdir, self._folder = "", -1
        self._outputs: list[Output] = []
        self._timer = asyncio.get_running_loop().call_later(_DRAIN_AFTER_S, self._follow)

    def _receive(self) -> bool:
        """Take it, if it has come."""
        try:
            workdir, descriptors, _, _ = socket.recv_fds(self._handles, _REPLY_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        if not descriptors:  # the worker has ended, which its answer tells too
            return False
        self._workdir, (self._folder, *pipes) = workdir.decode(), descriptors
        self._outputs = [Output(*each) for each in zip(pipes, (MAX_STDOUT_BYTES, MAX_STDERR_BYTES), strict=True)]
        return True

    def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._receive():
            self._timer = loop.call_later(_DRAIN_AFTER_S, self._follow)
        for output in self._outputs:
            loop.add_reader(output.pipe, output.drain)

    def all(self, fetch: list[str]) -> tuple[bytes, bytes, dict[str, bytes]]:
        """(standard output, standard error, files) of a run of which no process is left."""
        if not self._outputs and not self._receive():
            raise EOFError("a run has ended that had not begun")
        stdout, stderr = (output.rest() for output in self._outputs)
        return stdout, stderr, job_files.read_files(self._folder, self._workdir, fetch, MAX_FETCH_BYTES)

    def close(self) -> None:
        self._timer.cancel()
        if not self._outputs:
            self._receive()
        for output in self._outputs:
            asyncio.get_running_loop().remove_reader(output.pipe)
            os.close(output.pipe)
        if self._folder != -1:
            os.close(self._folder)


class WorkerLink:
    """A worker process, by the sockets that jobs go over, answers come from, and runs are handed over by. `cleans` says
    that it has to be told when its run's files have been read."""

    def __init__(self, jobs: socket.socket, replies: socket.socket, handles: socket.socket, cleans: bool) -> None:
        self._jobs, self._replies, self._handles, self._cleans = jobs, replies, handles, cleans
        self._pidfd: int | None = None
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.pid = 0
        for end in (jobs, replies, handles):
            end.setblocking(False)
        asyncio.get_running_loop().add_reader(replies, self._receive)

    async def greeted(self) -> "WorkerLink":
        """Itself, once the worker has said its pid. EOFError if it has ended instead."""
        self.pid = (await self._reply())["pid"]
        # By descriptor: a pid that has ended may be another process's by the time that it is to be killed.
        self._pidfd = os.pidfd_open(self.pid)
        return self

    async def run(self, job: Job, prepared_number: int) -> Outcome:
        """EOFError or ConnectionError if the worker died on the way, Unplaceable if the files could not be laid out."""
        loop = asyncio.get_running_loop()
        handed_over = HandedOver(self._handles)
        try:
            await loop.sock_sendall(self._jobs, job.message(prepared_number))
            end = await self._reply()
            if "unplaceable" not in end:
                stdout, stderr, files = handed_over.all(job.fetch)
        finally:
            handed_over.close()
        if self._cleans:
            await loop.sock_sendall(self._jobs, job_files.DONE)
        if "unplaceable" in end:
            raise Unplaceable(end["unplaceable"])
        return Outcome(**end, stdout=stdout, stderr=stderr, files=files)

    def _receive(self) -> None:
        raw = self._replies.recv(_REPLY_BYTES)
        if not raw:
            asyncio.get_running_loop().remove_reader(self._replies)
        self._answers.put_nowait(raw)

    async def _reply(self) -> dict[str, Any]:
        """The next answer of the worker or its run. EOFError if both have ended."""
        raw = await self._answers.get()
        if not raw:
            raise EOFError("the other end of the socket is closed")
        answer: dict[str, Any] = json.loads(raw)
        return answer

    def end(self, ending: signal.Signals) -> None:
        """End the worker and, with it, whatever it runs."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, ending)
            os.close(self._pidfd)
            self._pidfd = None
        asyncio.get_running_loop().remove_reader(self._replies)
        for end in (self._jobs, self._replies, self._handles):
            end.close()
