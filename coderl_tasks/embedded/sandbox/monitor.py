"""One run, from its job to its result: the trusted process beside the submission.

Pid 1 of the run's pid namespace where there is one. It lays out the files, starts the submission, drains its
output, ends it at the time limit, kills whatever is left, and only then, when nothing of the submission runs
any more, reads the files asked for. It shares no memory with the submission (it is not dumpable, and it holds
the capabilities the submission gave up) and cannot be killed from inside its namespace.
"""

# Plain `os` calls on these paths: they are made for every run.
# ruff: noqa: PTH102, PTH118

import _signal  # `signal` turns every number into an enum and back
import contextlib
import os
import select
import sys
import time
from _socket import socket
from functools import partial
from typing import Any

from coderl_tasks.embedded.sandbox import frames, job_files, kernel, processes, rootfs, submission
from coderl_tasks.embedded.sandbox.submission import MAIN_FILE, Code, Confinement, Limits

MAX_STDOUT_BYTES = 16 << 20
MAX_STDERR_BYTES = 1 << 20
MAX_FETCH_BYTES = 64 << 20
SCRATCH_BYTES = 128 << 20
_CHUNK = 1 << 18
NAMESPACE_WORKDIR = "/tmp"
_OWN_BYTES = 256 << 20  # the code of the request itself, beside the memory it asked for
_WATCH_SECONDS = 0.1


class Output:
    """What came out of one pipe; beyond `cap` bytes it is drained and forgotten."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.data = bytearray()

    def drain(self, descriptor: int) -> bool:
        """Read what is there; False at the end of the stream."""
        chunk = os.read(descriptor, _CHUNK)
        # Read on beyond the cap: a pipe that nobody drains would stop the program, and its time run out.
        self.data += chunk[: self.cap - len(self.data)]
        return bool(chunk)


class Run:
    """The run of one job in a working directory that is ready."""

    def __init__(self, confinement: Confinement, workdir: str, disk_bytes: int, own_pid_namespace: bool) -> None:
        self.disk_bytes = disk_bytes
        self.confinement = confinement
        self.workdir = workdir
        self.own_pid_namespace = own_pid_namespace
        self.stdout = Output(MAX_STDOUT_BYTES)
        self.stderr = Output(MAX_STDERR_BYTES)
        self.killer: processes.Killer | None = None

    def execute(self, limits: Limits, code: Code, stdin: bytes) -> dict[str, Any]:
        """Run `code` to its end or to the time limit; {"return_code" (None after a time-out),
        "execution_time"}."""
        # The end of the submission wakes the poll below through this pipe. The end of its output would not tell: it may
        # close its streams and go on, or leave children that hold them open.
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        error_read, error_write = os.pipe2(os.O_CLOEXEC)
        # A file and no pipe: it need not be fed while the program runs, and a program that never reads blocks nobody.
        stdin_file = os.memfd_create("stdin")
        job_files.write_all(stdin_file, stdin)
        os.lseek(stdin_file, 0, os.SEEK_SET)

        started = time.monotonic()
        child = partial(self._child, limits, code, (stdin_file, out_write, error_write))
        if self.confinement.readable is not None:
            pid, self.killer = processes.start_killer(child, self.confinement.uid)
        else:
            pid = os.fork()
            if pid == 0:
                child()
        for descriptor in (out_write, error_write, stdin_file):
            os.close(descriptor)
        pipes = {out_read: self.stdout, error_read: self.stderr}
        poll = select.poll()
        for descriptor in (*pipes, wake_read):
            poll.register(descriptor, select.POLLIN)

        status: int | None = None
        next_watch = started + _WATCH_SECONDS
        while status is None:
            left = started + limits.timeout_s - time.monotonic()
            if left <= 0:
                break
            for descriptor, _ in poll.poll(min(left, _WATCH_SECONDS) * 1000):
                if descriptor == wake_read:
                    os.read(wake_read, 4096)
                elif not pipes[descriptor].drain(descriptor):
                    poll.unregister(descriptor)
            status = processes.reap(pid)
            if status is None and time.monotonic() >= next_watch:
                self._watch(limits)
                next_watch = time.monotonic() + _WATCH_SECONDS
        elapsed = time.monotonic() - started
        # First the processes, then the rest of the output: with a writer alive the streams might never end.
        self.end()
        for descriptor, output in pipes.items():
            while output.drain(descriptor):
                pass
        code_or_none = None if status is None else os.waitstatus_to_exitcode(status)
        return {"return_code": code_or_none, "execution_time": elapsed}

    def end(self) -> None:
        """End every process of the run."""
        if self.killer is not None:
            self.killer.end_run()
            self.killer = None
        processes.kill_all(self.own_pid_namespace)

    def _watch(self, limits: Limits) -> None:
        """The limits over all processes of the run together, where neither a control group nor a tmpfs sets
        them."""
        spared = () if self.killer is None else (self.killer.pid,)
        processes.end_largest_over((limits.memory_mib << 20) + _OWN_BYTES, spared)
        if not self.own_pid_namespace and processes.folder_bytes(self.workdir) > self.disk_bytes:
            for pid in set(processes.descendants()).difference(spared):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, _signal.SIGKILL)

    def _child(self, limits: Limits, code: Code, streams: tuple[int, int, int]) -> None:
        status = 1
        try:
            _signal.set_wakeup_fd(-1)
            submission.become(self.confinement, limits, self.workdir, streams)
            status = submission.run_main(self.workdir, code)
        except BaseException:
            sys.__excepthook__(*sys.exc_info())
        finally:
            # Never out of this function: what called it is the monitor's copy.
            os._exit(status)


def serve_job(
    connection: socket, confinement: Confinement, namespaces: bool, scratch_root: str, kept: Code | None
) -> None:
    """Serve the job that waits on `connection` and answer it there. Runs in a process of its own, and ends
    with it.

    With `namespaces` this is pid 1 and mounts its private folders; else the working directory is made below
    `scratch_root`. `kept` is the code of a job that comes without.
    """
    # With the pid namespace's init the kernel kills all processes of the run; without one this process must live on to
    # do that, so it is asked to end (`_abandon`).
    kernel.prctl(kernel.PR_SET_PDEATHSIG, _signal.SIGKILL if namespaces else _signal.SIGTERM)
    # Before the job is read: from then on there is something that the submission must not look into.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    job, blobs = frames.receive(connection)
    source, stdin, *contents = blobs
    code = kept if job["kept_code"] else Code(source)
    assert code is not None
    disk_bytes = SCRATCH_BYTES + sum(map(len, blobs))
    if namespaces:
        rootfs.mount_private(disk_bytes)
        workdir = NAMESPACE_WORKDIR
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        workdir = os.path.join(scratch_root, f"run-{os.getpid()}")
        os.mkdir(workdir, 0o700)
        # Nothing else ends the submission's processes when the server dies; the finally below does.
        _signal.signal(_signal.SIGTERM, _abandon)
    run = Run(confinement, workdir, disk_bytes, namespaces)
    try:
        files = dict(zip(job["files"], contents, strict=True)) | {MAIN_FILE: code.source}
        fault = job_files.lay_out(workdir, files, own_disk=namespaces)
        if fault is not None:
            connection.sendall(frames.pack({"unplaceable": fault}))
            return
        if confinement.uid is not None:
            job_files.give(workdir, confinement.uid)
        header = run.execute(Limits(job["timeout_s"], job["memory_mib"]), code, stdin)
        fetched: dict[str, bytes] = {}
        budget = MAX_FETCH_BYTES
        for name in job["fetch"]:
            # A budget for all of them together: each alone may be as large as the disk allows.
            found = job_files.read_file(workdir, name, budget)
            if found is not None:
                fetched[name] = found
                budget -= len(found)
        output = [bytes(run.stdout.data), bytes(run.stderr.data)]
        connection.sendall(frames.pack(header | {"fetched": list(fetched)}, [*output, *fetched.values()]))
    finally:
        if not namespaces:
            run.end()
            job_files.remove_tree(workdir)


class Abandoned(BaseException):
    """The server is gone: nobody waits for the run."""


def _abandon(*_: object) -> None:
    raise Abandoned
