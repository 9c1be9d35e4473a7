"""The server's end of a worker: hands it jobs, drains what a run prints, and reads the files that it leaves."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from coderl_tasks.embedded.sandbox import frames, job_files

MAX_STDOUT_BYTES = 16 << 20
MAX_STDERR_BYTES = 1 << 20
MAX_FETCH_BYTES = 64 << 20
SCRATCH_BYTES = 128 << 20
"""What a program may write, beside the files that came with it."""
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

    def message(self, prepared: bool) -> bytes:
        """What goes to the worker; without the code where that is prepared."""
        disk_bytes, n_blobs = SCRATCH_BYTES + self.payload_bytes, len(self.files) + 3
        terms = frames.Terms(self.timeout_s, self.memory_mib, disk_bytes, n_blobs, prepared)
        return terms.message(list(self.files), b"" if prepared else self.code, self.stdin, list(self.files.values()))


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
        self._pipe, self._cap = pipe, cap
        self.data = bytearray()
        os.set_blocking(pipe, False)
        # Most runs are over before, and what they print fits into the pipe.
        self._start = asyncio.get_running_loop().call_later(_DRAIN_AFTER_S, self._follow)

    def _follow(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe, self._drain)

    def _drain(self) -> bool:
        """Read what is there; False where there is nothing (more)."""
        try:
            chunk = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        # Read on beyond the cap: a pipe that nobody drains would stop the program, and its time run out.
        self.data += chunk[: self._cap - len(self.data)]
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._pipe)
        return bool(chunk)

    def rest(self) -> bytes:
        """All of it, once no process can write any more."""
        while self._drain():
            pass
        return bytes(self.data)

    def close(self) -> None:
        self._start.cancel()
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)


class WorkerLink:
    """A worker process, by the sockets that jobs go over and answers come from."""

    def __init__(self, jobs: socket.socket, replies: socket.socket) -> None:
        self._jobs, self._replies = jobs, replies
        self._pidfd: int | None = None
        self._answers: asyncio.Queue[tuple[bytes, list[int]]] = asyncio.Queue()
        self.pid = 0
        for end in (jobs, replies):
            end.setblocking(False)
        asyncio.get_running_loop().add_reader(replies, self._receive)

    async def greeted(self) -> "WorkerLink":
        """Itself, once the worker has said its pid. EOFError if it has ended instead."""
        self.pid = (await self._reply())[0]["pid"]
        # By descriptor: a pid that has ended may be another process's by the time that it is to be killed.
        self._pidfd = os.pidfd_open(self.pid)
        return self

    async def run(self, job: Job, prepared: bool) -> Outcome:
        """EOFError or ConnectionError if the worker died on the way, Unplaceable if the files could not be laid out."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._jobs, job.message(prepared))
        begun, descriptors = await self._reply()
        with contextlib.ExitStack() as opened:
            if "unplaceable" not in begun:
                folder, stdout_pipe, stderr_pipe = descriptors
                opened.callback(os.close, folder)
                stdout, stderr = Output(stdout_pipe, MAX_STDOUT_BYTES), Output(stderr_pipe, MAX_STDERR_BYTES)
                opened.callback(stdout.close)
                opened.callback(stderr.close)
                end, _ = await self._reply()
                # No process of the run is left, so nobody changes what is read now.
                files = job_files.read_files(folder, begun["workdir"], job.fetch, MAX_FETCH_BYTES)
                outcome = Outcome(**end, stdout=stdout.rest(), stderr=stderr.rest(), files=files)
        await loop.sock_sendall(self._jobs, frames.DONE)
        if "unplaceable" in begun:
            raise Unplaceable(begun["unplaceable"])
        return outcome

    def _receive(self) -> None:
        raw, descriptors, _, _ = socket.recv_fds(self._replies, _REPLY_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
        if not raw:
            asyncio.get_running_loop().remove_reader(self._replies)
        self._answers.put_nowait((raw, descriptors))

    async def _reply(self) -> tuple[dict[str, Any], list[int]]:
        """The next message of the worker or its run, with the descriptors in it. EOFError if both have ended."""
        raw, descriptors = await self._answers.get()
        if not raw:
            raise EOFError("the other end of the socket is closed")
        return json.loads(raw), descriptors

    def end(self, ending: signal.Signals) -> None:
        """End the worker and, with it, whatever it runs."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, ending)
            os.close(self._pidfd)
            self._pidfd = None
        asyncio.get_running_loop().remove_reader(self._replies)
        while not self._answers.empty():  # what nobody waits for any more
            for descriptor in self._answers.get_nowait()[1]:
                os.close(descriptor)
        self._jobs.close()
        self._replies.close()
