"""The server's side of the workers: starts fork servers, hands jobs to free slots, replaces what died.

A slot runs one job at a time. Its workers (one of each fork server) are forked when first needed and serve for as long
as they live. A job whose worker vanished is run once more on a new one, which is safe: a run has no effect outside
itself.
"""

import asyncio
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local_servers.memory import CGROUPS, own_groups
from local_servers.sandbox import fork_server, interpreter, isolation
from local_servers.sandbox.interpreter import Scratch
from local_servers.sandbox.worker_link import SCRATCH_BYTES, Job, Outcome, Unplaceable, WorkerLink
from local_servers.server_errors import ServerError, SetupError

_GROUP_PREFIX = "coderl-sandbox-"
_MAX_PROCESSES = 192
_END_SECONDS = 5
_OWN_BYTES = 256 << 20  # the worker, the run's first process with its buffers, the driver
_START_SECONDS = 60
_GRACE_SECONDS = 30  # how much longer than its time limit a job may take before its worker counts as hung


class Busy(ServerError):
    """All slots are taken and the queue is full."""


class ForkServer:
    """The server's end of a fork server; started on first use and again when it has died."""

    def __init__(self, import_rare: bool, scratch: str, allow_unisolated: bool, prepared: Sequence[str]) -> None:
        programs = {"import_rare": import_rare, "prepared_sources": list(prepared)}
        self._arguments = {"scratch_folder": scratch, "allow_unisolated": allow_unisolated} | programs
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()
        self.level = self.reason = ""
        self.readable_paths: list[str] = []

    @property
    def pid(self) -> int | None:
        """None while it is not running."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def start(self) -> socket.socket:
        """Starts the fork server unless it lives, and returns its control socket. SetupError where no isolation is
        possible, ServerError if its Python does not start."""
        async with self._starting:
            if self.pid is not None and self._control is not None:
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
                raise ServerError("the sandbox's Python ended while it started; its last words are on stderr")
            hello = json.loads(raw)
            if hello["level"] is None:
                raise SetupError(
                    f"no isolation for untrusted code here ({hello['reason']}). Allow user namespaces (sysctl "
                    "kernel.apparmor_restrict_unprivileged_userns=0 or user.max_user_namespaces=10000), boot a kernel "
                    "with Landlock, or set SANDBOX_URL to a Sandbox Fusion server; --allow-unisolated runs without"
                )
            self.level, self.reason = hello["level"], hello["reason"]
            self.readable_paths = hello["readable_paths"]
            return ours

    async def fork_worker(self) -> WorkerLink:
        """A new worker. EOFError or ConnectionError if the fork server died meanwhile."""
        control = await self.start()
        jobs, their_jobs = socket.socketpair()
        replies, their_replies = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handles, their_handles = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link = WorkerLink(jobs, replies, handles, cleans=self.level != isolation.NAMESPACES)
        try:
            with their_jobs, their_replies, their_handles:
                theirs = [end.fileno() for end in (their_jobs, their_replies, their_handles)]
                socket.send_fds(control, [b"fork"], theirs)
            async with asyncio.timeout(_START_SECONDS):
                return await link.greeted()
        except BaseException:
            self.end(link)
            raise

    def end(self, link: WorkerLink) -> None:
        link.end(isolation.ending(self.level))

    def stop(self) -> None:
        """End the fork server and, as they die with it, its workers; returns when the fork server is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process = self._control = None


@dataclass(slots=True)
class SlotGroup:
    """The control groups of one slot, a limit over everything that it runs: memory and pids under v1, one folder under
    v2; none where this process cannot make them. A worker is moved into its slot's group once. The limits of a process
    (RLIMIT_AS) do not add up over a fork bomb's children or the files in a tmpfs."""

    folders: list[Path]
    memory_file: Path | None
    memory_bytes: int = 0

    @classmethod
    def create(cls, index: int) -> "SlotGroup":
        """Makes the control groups of slot `index` below this process's own."""
        name = f"{_GROUP_PREFIX}{os.getpid()}-{index}"
        folders: list[Path] = []
        try:
            parents = _parent_groups()
            if parents is None:
                return cls([], None)
            memory_parent, pids_parent, memory_limit_file = parents
            for parent in dict.fromkeys((memory_parent, pids_parent)):  # under v2 both are one
                _sweep(parent)  # removes groups of servers that are gone
                (parent / name).mkdir()
                folders.append(parent / name)
            (pids_parent / name / "pids.max").write_text(str(_MAX_PROCESSES))
            return cls(folders, memory_parent / name / memory_limit_file)
        except OSError:
            cls(folders, None).remove()  # of two, one may have been made
            return cls([], None)

    def add(self, pid: int) -> None:
        """Move a worker in, and with it all it will ever fork."""
        for folder in self.folders:
            with contextlib.suppress(ProcessLookupError):
                (folder / "cgroup.procs").write_text(str(pid))

    def limit_memory(self, memory_mib: int, payload_bytes: int) -> None:
        """Allow the next job its memory, its files and our own part."""
        # What the run's tmpfs holds counts as memory of the group, and so do the copies of a request on its way in.
        wanted = (memory_mib << 20) + SCRATCH_BYTES + 3 * payload_bytes + _OWN_BYTES
        if self.memory_file is not None and wanted != self.memory_bytes:
            # Refused while the pages of the run before are still being freed: then its limit stays for this one.
            with contextlib.suppress(OSError):
                self.memory_file.write_text(str(wanted))
                self.memory_bytes = wanted

    def remove(self) -> None:
        """Remove the groups once their processes, which must have been killed, are gone."""
        deadline = time.monotonic() + _END_SECONDS
        for folder in self.folders:
            # A group with processes cannot be removed, and killed ones take a moment to go.
            while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
                time.sleep(0.005)
            try:
                folder.rmdir()
            except OSError as error:
                print(f"sandbox: the control group {folder} stays: {error.strerror}", file=sys.stderr)
        self.folders = []


def _parent_groups() -> tuple[Path, Path, str] | None:
    """Returns the control groups below which a slot's memory and pids groups are made (under v2 one for both), and what
    a memory limit's file is called there; None where this process may not make groups with limits."""
    own = {controller: folder for controller, folder in own_groups().items() if (folder / "cgroup.procs").exists()}
    if "memory" in own and "pids" in own:
        return own["memory"], own["pids"], "memory.limit_in_bytes"
    # v2: a group that has processes cannot give its children limits, unless it is the root of all groups. This
    # process's own group passes only if it was set up for that by whoever delegated it.
    for folder in (own.get(""), CGROUPS):
        if folder is None or not (control := folder / "cgroup.subtree_control").exists():
            continue
        if {"memory", "pids"} <= set(control.read_text().split()):
            return folder, folder, "memory.max"
    return None


def _sweep(place: Path) -> None:
    """Remove the empty groups of servers that were killed."""
    for folder in place.glob(f"{_GROUP_PREFIX}*"):
        owner = folder.name.removeprefix(_GROUP_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


class WorkerPool:
    """Slots that run jobs, at most `concurrency` at a time; at most `queue_limit` more may wait."""

    def __init__(
        self, concurrency: int, queue_limit: int, allow_unisolated: bool, prepared: Sequence[str] = ()
    ) -> None:
        """`prepared` are the texts of trusted programs with a `main`, which find their definitions loaded."""
        self._concurrency, self._queue_limit, self._waiting = concurrency, queue_limit, 0
        self._scratch = Scratch()
        self._fork_servers = {
            has_rare: ForkServer(has_rare, self._scratch.path, allow_unisolated, prepared) for has_rare in (False, True)
        }
        self._prepared_numbers = {text.encode(): number for number, text in enumerate(prepared, 1)}
        self._workers: dict[tuple[int, bool], WorkerLink] = {}
        self._groups = [SlotGroup.create(index) for index in range(concurrency)]
        self._has_cgroups = all(group.folders for group in self._groups)
        # Last in, first out: under a light load few slots do all the work, and the others' workers need not be forked.
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for index in reversed(range(concurrency)):
            self._free.put_nowait(index)

    async def start(self) -> list[str]:
        """Start the fork servers and say on stderr how they isolate; the host paths that programs may read. SetupError
        where no isolation is to be had."""
        # Both now: the first job is not to wait seconds for imports, and a machine without isolation is told at once.
        await asyncio.gather(*(server.start() for server in self._fork_servers.values()))
        usual = self._fork_servers[False]
        if usual.level == isolation.UNISOLATED:
            line = f"WARNING: no isolation ({usual.reason}): programs can read what you can"
        else:
            because = f" ({usual.reason})" if usual.reason else ""
            groups = "with" if self._has_cgroups else "without"
            line = f"isolation by {usual.level}{because}, {groups} control groups, {self._concurrency} slots"
        print(f"sandbox: {line}", file=sys.stderr, flush=True)
        return usual.readable_paths

    def info(self) -> dict[str, object]:
        """What this server is and how busy it is, as /v1/info shows it."""
        usual = self._fork_servers[False]
        return {
            "server": "coderl embedded sandbox",
            "isolation": usual.level,
            "isolation_reason": usual.reason,
            "cgroups": self._has_cgroups,
            "python": platform.python_version(),
            "numpy": bool(interpreter.numpy_folders()),
            "readable": usual.readable_paths,
            "concurrency": self._concurrency,
            "running": self._concurrency - self._free.qsize(),
            "queued": self._waiting,
            "queue_limit": self._queue_limit,
            "pid": os.getpid(),
            "fork_server_pids": [server.pid for server in self._fork_servers.values() if server.pid is not None],
        }

    def stop(self) -> None:
        for index, has_rare in list(self._workers):
            self._discard(index, has_rare)
        for server in self._fork_servers.values():
            server.stop()
        for group in self._groups:
            group.remove()
        self._scratch.remove()

    def _discard(self, index: int, has_rare: bool) -> None:
        worker = self._workers.pop((index, has_rare), None)
        if worker is not None:
            self._fork_servers[has_rare].end(worker)

    async def run(self, job: Job) -> Outcome:
        """Run a job in the next free slot, in its worker process; cancelling it ends the run. If the worker dies or
        hangs, it is replaced and the job run once more. Busy if the queue is full; Unplaceable for a file name that is
        impossible; ServerError if both tries failed."""
        if self._free.empty() and self._waiting >= self._queue_limit:
            raise Busy(f"all {self._concurrency} slots are busy and {self._waiting} requests wait")
        self._waiting += 1
        try:
            index = await self._free.get()
        finally:
            self._waiting -= 1
        # Some workers have numpy and the like loaded. Only programs are searched for such imports: data may be large.
        programs = (job.code, *(data for name, data in job.files.items() if name.endswith(".py")))
        has_rare = any(map(fork_server.imports_rare, programs))
        prepared_number = self._prepared_numbers.get(job.code, 0)  # 0: the job brings its own code
        try:
            for _ in range(2):
                try:
                    worker = self._workers.get((index, has_rare))
                    if worker is None:
                        worker = self._workers[index, has_rare] = await self._fork_servers[has_rare].fork_worker()
                        self._groups[index].add(worker.pid)
                    # Before each job: the group is the slot's, and the limit was the last job's.
                    self._groups[index].limit_memory(job.memory_mib, job.payload_bytes)
                    # Not wait_for: until Python 3.12 it could lose the cancellation.
                    async with asyncio.timeout(job.timeout_s + _GRACE_SECONDS):
                        return await worker.run(job, prepared_number)
                except (EOFError, ConnectionError) as error:
                    failure = f"the worker died: {error!r}"
                except Unplaceable:  # the worker is none the worse for it
                    raise
                except TimeoutError:
                    failure = "the worker hung"
                except BaseException:  # the worker is in the middle of something, and nobody waits for it
                    self._discard(index, has_rare)
                    raise
                print(f"sandbox: {failure}; replacing it", file=sys.stderr, flush=True)
                self._discard(index, has_rare)
            raise ServerError(f"{failure}, twice")
        finally:
            self._free.put_nowait(index)
