"""The server's side of the workers: starts fork servers, hands jobs to free slots, replaces what died.

A slot runs one job at a time. Its workers (one of each fork server) are forked when first needed and serve for as long
as they live. A job whose worker vanished is run once more on a new one, which is safe: a run has no effect outside
itself.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from coderl_tasks.embedded.sandbox import fork_server, frames, interpreter
from coderl_tasks.embedded.sandbox.cgroups import SlotGroup
from coderl_tasks.embedded.sandbox.scratch import Scratch
from coderl_tasks.errors import ConfigError, InfraError

_START_SECONDS = 60
_GRACE_SECONDS = 30  # how much longer than its time limit a job may take before its worker counts as hung
_STREAM_BYTES = 1 << 20
_LARGEST_KEPT_CODE = 1 << 18


class Busy(InfraError):
    """All slots are taken and the queue is full."""


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
    def imports_rare(self) -> bool:
        """Whether it should run where what few programs import is loaded."""
        return any(map(fork_server.imports_rare, (self.code, *self.files.values())))

    @property
    def payload_bytes(self) -> int:
        return len(self.code) + len(self.stdin) + sum(map(len, self.files.values()))

    def frame(self, kept_code: bool) -> bytes:
        """The message to the worker; without the code where the worker keeps it."""
        header = {
            "timeout_s": self.timeout_s,
            "memory_mib": self.memory_mib,
            "files": list(self.files),
            "fetch": self.fetch,
            "kept_code": kept_code,
        }
        return frames.JOB + frames.pack(header, [b"" if kept_code else self.code, self.stdin, *self.files.values()])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave; `return_code` is None after a time-out and -n after signal n."""

    return_code: int | None
    execution_time: float
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes]


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], list[bytes]]:
    """Read one message of `frames` from a stream; asyncio.IncompleteReadError (an EOFError) when the peer is gone."""
    length = frames.header_length(await reader.readexactly(frames.LENGTH_BYTES))
    header = json.loads(await reader.readexactly(length))
    return header, [await reader.readexactly(count) for count in header.pop("blobs")]


class Worker:
    """The server's end of one worker process.

    Code that comes twice in a row, as a grading driver does, is given to the worker to keep, compiled. Should compiling
    it end the worker, the next one is not asked to before the code has come twice again.
    """

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer
        # By descriptor: a pid that has ended may be another process's by the time that it is to be killed.
        self._pidfd = os.pidfd_open(pid)
        self._last_code = self._kept_code = b""

    async def run(self, job: Job) -> Outcome:
        """EOFError or ConnectionError if the worker died on the way, Unplaceable if it could not lay out the files."""
        if job.code == self._last_code != self._kept_code and len(job.code) <= _LARGEST_KEPT_CODE:
            self._writer.write(frames.KEEP + frames.pack({}, [job.code]))
            self._kept_code = job.code
        self._last_code = job.code
        self._writer.write(job.frame(kept_code=job.code == self._kept_code != b""))
        await self._writer.drain()
        header, blobs = await receive(self._reader)
        if "unplaceable" in header:
            raise Unplaceable(header["unplaceable"])
        stdout, stderr, *contents = blobs
        fetched = dict(zip(header["fetched"], contents, strict=True))
        return Outcome(header["return_code"], header["execution_time"], stdout, stderr, fetched)

    def kill(self) -> None:
        """End the worker and, with it, whatever it runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._writer.close()


class ForkServer:
    """The server's end of a fork server; started on first use and again when it has died."""

    def __init__(self, rich: bool, scratch: str, allow_unisolated: bool) -> None:
        self._arguments = {"rich": rich, "scratch": scratch, "allow_unisolated": allow_unisolated}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()
        self.level = ""
        self.reason = ""

    @property
    def pid(self) -> int | None:
        """None while it is not running."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def start(self) -> socket.socket:
        """The control socket of a live fork server. ConfigError where no isolation is to be had."""
        async with self._starting:
            if self._process is not None and self._process.poll() is None and self._control is not None:
                return self._control
            self.stop()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            arguments = self._arguments | {"parent": os.getpid(), "control": theirs.fileno()}
            self._process = subprocess.Popen(
                interpreter.command(),
                bufsize=0,
                env=interpreter.environment(),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=sys.stderr,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is the server's to answer: it ends its workers in order.
                start_new_session=True,
            )
            theirs.close()
            self._control = ours
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # one that has ended says no hello
                stdin.write(interpreter.arguments_with(arguments))
            async with asyncio.timeout(_START_SECONDS):
                raw = await asyncio.get_running_loop().sock_recv(ours, 65536)
            if not raw:
                raise InfraError("the sandbox's Python ended while it started; its last words are on stderr")
            hello = json.loads(raw)
            if hello["level"] is None:
                raise ConfigError(
                    f"no isolation for untrusted code here ({hello['reason']}). Allow user namespaces (sysctl "
                    "kernel.apparmor_restrict_unprivileged_userns=0 or user.max_user_namespaces=10000), boot a kernel "
                    "with Landlock, or set SANDBOX_URL to a Sandbox Fusion server; --allow-unisolated runs without"
                )
            self.level, self.reason = hello["level"], hello["reason"]
            return ours

    async def fork_worker(self, index: int) -> Worker:
        """A new worker. EOFError or ConnectionError if the fork server died meanwhile."""
        control = await self.start()
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(control, [json.dumps({"index": index}).encode()], [theirs.fileno()])
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_STREAM_BYTES)
        try:
            async with asyncio.timeout(_START_SECONDS):
                header, _ = await receive(reader)
            return Worker(header["pid"], reader, writer)
        except BaseException:
            writer.close()
            raise

    def stop(self) -> None:
        """End the fork server and, as they die with it, its workers; returns when the fork server is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process = self._control = None


class WorkerPool:
    """Slots that run jobs, at most `concurrency` at a time; at most `queue_limit` more may wait."""

    def __init__(self, concurrency: int, queue_limit: int, allow_unisolated: bool) -> None:
        self.concurrency = concurrency
        self.queue_limit = queue_limit
        self.waiting = 0
        self._scratch = Scratch()
        self.numpy = interpreter.has_numpy()
        self._fork_servers = {rich: ForkServer(rich, self._scratch.path, allow_unisolated) for rich in (False, True)}
        self._workers: dict[tuple[int, bool], Worker] = {}
        self._groups = [SlotGroup.create(index) for index in range(concurrency)]
        # Last in, first out: under a light load few slots do all the work, and the others' workers need not be forked.
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for index in reversed(range(concurrency)):
            self._free.put_nowait(index)

    @property
    def running(self) -> int:
        return self.concurrency - self._free.qsize()

    @property
    def level(self) -> str:
        return self._fork_servers[False].level

    @property
    def reason(self) -> str:
        return self._fork_servers[False].reason

    @property
    def has_cgroups(self) -> bool:
        return all(group.active for group in self._groups)

    @property
    def fork_server_pids(self) -> list[int]:
        return [server.pid for server in self._fork_servers.values() if server.pid is not None]

    async def start(self) -> None:
        """Start the fork servers; ConfigError where no isolation is to be had."""
        # Both now: the first job is not to wait seconds for imports, and a machine without isolation is told at once.
        await asyncio.gather(*(server.start() for server in self._fork_servers.values()))

    def stop(self) -> None:
        """End every process and remove every trace."""
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()
        for server in self._fork_servers.values():
            server.stop()
        for group in self._groups:
            group.remove()
        self._scratch.remove()

    async def _worker(self, index: int, rich: bool) -> Worker:
        worker = self._workers.get((index, rich))
        if worker is None:
            worker = self._workers[index, rich] = await self._fork_servers[rich].fork_worker(index)
            self._groups[index].add(worker.pid)
        return worker

    def _discard(self, index: int, rich: bool) -> None:
        worker = self._workers.pop((index, rich), None)
        if worker is not None:
            worker.kill()

    async def run(self, job: Job) -> Outcome:
        """Run a job in the next free slot; cancelling it ends the run.

        Busy if the queue is full; Unplaceable for a file name that is impossible; InfraError if the job could not be
        run, twice.
        """
        if self._free.empty() and self.waiting >= self.queue_limit:
            raise Busy(f"all {self.concurrency} slots are busy and {self.waiting} requests wait")
        self.waiting += 1
        try:
            index = await self._free.get()
        finally:
            self.waiting -= 1
        rich = job.imports_rare
        try:
            for _ in range(2):
                try:
                    worker = await self._worker(index, rich)
                    # Before each job: the group is the slot's, and the limit was the last job's.
                    self._groups[index].limit_memory(job.memory_mib, job.payload_bytes)
                    # Not wait_for: until Python 3.12 it could lose the cancellation.
                    async with asyncio.timeout(job.timeout_s + _GRACE_SECONDS):
                        return await worker.run(job)
                except (EOFError, ConnectionError) as error:
                    failure = f"the worker died: {error!r}"
                except Unplaceable:  # the worker is none the worse for it
                    raise
                except TimeoutError:
                    failure = "the worker hung"
                except BaseException:  # the worker is in the middle of something, and nobody waits for it
                    self._discard(index, rich)
                    raise
                print(f"sandbox: {failure}; replacing it", file=sys.stderr, flush=True)
                self._discard(index, rich)
            raise InfraError(f"{failure}, twice")
        finally:
            self._free.put_nowait(index)
