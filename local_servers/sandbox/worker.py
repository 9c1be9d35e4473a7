"""A slot's worker, and the first process of each of its runs.

The worker forks its runs, one at a time, ends each at its limits, and says how it ended. It never holds a job, since
all runs of the slot are forked from it and inherit its memory: the run's first process reads the job itself, lays out
its files, hands the server its output and files by descriptors, and becomes the program. The worker outlives the run,
cannot be signalled by it, and answers only when none of its processes is left.
"""

import _signal  # `signal` turns every number into an enum and back
import contextlib
import json
import math
import os
import struct
import sys
import time
from _socket import MSG_WAITALL, SCM_RIGHTS, SOL_SOCKET, socket
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import NamedTuple, NoReturn

from local_servers.sandbox import job_files, kernel, processes, rootfs, submission
from local_servers.sandbox.submission import MAIN_FILE, Confinement

_NAMESPACE_WORKDIR = "/tmp"
_BEGAN, _PROGRAM_STATUS = struct.Struct("d"), struct.Struct("i")  # of `_read_notes`
DESCRIPTORS = struct.Struct("3i")
_RUN_NAMESPACES = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
_OWN_BYTES = 256 << 20  # the code of the request itself, beside the memory it asked for
_WATCH_SECONDS = 0.1
_CHILD_SIGNAL = (_signal.SIGCHLD,)


class Slot(NamedTuple):
    """What all runs of a slot have in common. `scratch` is the folder, made by the worker, for their working
    directories; None with namespaces. Jobs come over `connection`, answers go to `replies`, what a run hands over to
    `handles`. `prepared` are the programs whose definitions are loaded."""

    confinement: Confinement
    scratch: str | None
    connection: socket
    replies: socket
    handles: socket
    prepared: Sequence[ModuleType]

    @property
    def has_namespaces(self) -> bool:
        return self.scratch is None

    def program_is_child(self, terms: job_files.Terms) -> bool:
        """Whether a job's program runs as a child of the run's first process. With namespaces that one is pid 1, which
        the kernel lets ignore most signals, so that the program would not end as under an ordinary interpreter. Only a
        prepared program, which is known to need none of them, runs in pid 1 itself."""
        return self.has_namespaces and not terms.prepared_number


def _read_notes(raw: bytes) -> tuple[float | None, int | None]:
    """What the run has written to its worker over a pipe: when the program began (seconds of the monotonic clock), and
    then, where the program is a child of the run's first process, the wait status of that child. None: not yet."""
    if len(raw) < _BEGAN.size:  # at most the status of a child that could not become the program
        return None, None
    began: float = _BEGAN.unpack_from(raw)[0]
    return began, _PROGRAM_STATUS.unpack_from(raw, _BEGAN.size)[0] if len(raw) > _BEGAN.size else None


class Abandoned(BaseException):
    """The server is gone: nobody waits for the run."""


def _abandon(*_: object) -> NoReturn:
    # The server asks for it, and so does its end: once is enough.
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    raise Abandoned


def serve(slot: Slot) -> None:
    """A worker's loop: run the jobs that come over the slot's connection, one after the other, until it closes or a job
    could not be run. Without namespaces (then there is a scratch folder) the server says after each job when it has
    read its files, and what is left of them is removed; and SIGTERM ends the run and the worker. With them both happens
    by itself."""
    # Blocked, the signal stays pending until `_wait` takes it: that waits for it and for a deadline in one call.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _CHILD_SIGNAL)
    if slot.scratch is not None:
        # Without a pid namespace, what a program leaves behind comes to this process, which can end it.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        _signal.signal(_signal.SIGTERM, _abandon)  # raises Abandoned
    try:
        while terms := slot.connection.recv(job_files.TERMS_BYTES, MSG_WAITALL):
            if not _serve_one(slot, job_files.Terms.unpack(terms)):
                break
            if slot.scratch is not None:
                slot.connection.recv(len(job_files.DONE))
                _clear(slot.scratch)
    except Abandoned:
        pass  # the run has been ended, and there is nobody to tell
    finally:
        if slot.scratch is not None:
            with contextlib.suppress(FileNotFoundError):  # a server that stops removes it too
                _clear(slot.scratch)
                os.rmdir(slot.scratch)


def _clear(scratch: str) -> None:
    for entry in os.listdir(scratch):
        job_files.remove_tree(os.path.join(scratch, entry))


def _serve_one(slot: Slot, terms: job_files.Terms) -> bool:
    """Run the job that waits on the connection in a new process, and send the server how its program ended. Returns
    False if the sandbox's own part failed: the worker must then end, so that the server runs the job elsewhere."""
    if slot.confinement.shares_user:
        # The process limit counts all processes of the user: this run's comes on top of those that run just now.
        running = _processes_of(os.getuid())
        slot = slot._replace(confinement=slot.confinement._replace(base_processes=running))
    notes_read, notes_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    begin = partial(_begin, slot, terms, (notes_read, notes_write))  # the run's first process; does not return
    killer = None  # under Landlock alone: in a pid namespace all of the run ends with its first process
    if slot.confinement.ruleset is not None:
        pid, killer = processes.start_killer(begin, slot.confinement.uid)
    else:
        pid = kernel.clone(_RUN_NAMESPACES) if slot.has_namespaces else os.fork()
        if pid == 0:
            begin()
    os.close(notes_write)
    # Trusted processes are not killed for what the run takes: the killer, and pid 1 where the program is its child.
    spared = {pid} if slot.program_is_child(terms) else set[int]() if killer is None else {killer.pid}
    try:
        status, ended, (began, program_status) = _wait(slot, terms, pid, notes_read, spared)
    finally:
        os.close(notes_read)
        if not slot.has_namespaces:  # with them, all of the run ended with its first process
            if killer is not None:
                killer.end_run()
            processes.kill_all()
    if began is None:
        # The job was at fault, which the run told the server before it ended with 0; or the run itself failed.
        return status == 0
    if status is not None and slot.program_is_child(terms):
        status = program_status
        if status is None:  # the first process died before it noted how the program ended
            return False
    code = None if status is None else os.waitstatus_to_exitcode(status)
    answer = {"return_code": code, "execution_time": ended - began}
    slot.replies.send(json.dumps(answer).encode())
    return True


def _wait(
    slot: Slot, terms: job_files.Terms, pid: int, notes: int, spared: set[int]
) -> tuple[int | None, float, tuple[float | None, int | None]]:
    """Wait for the end of the run's first process `pid`. With namespaces kill it at the time limit, else leave that to
    the caller. Meanwhile end processes of the run (not the `spared` ones) where it takes too much memory or disk.
    Returns (wait status, None after a time-out; when that was; what came over the pipe `notes`)."""
    raw, now = b"", time.monotonic()
    deadline, next_watch = now + terms.timeout_s, now + _WATCH_SECONDS
    while True:
        _signal.sigtimedwait(_CHILD_SIGNAL, max(0.0, min(deadline, next_watch) - now))
        status = processes.reap(pid)
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            raw += os.read(notes, 64)
        noted = _read_notes(raw)
        began = noted[0]
        if status is not None:
            return status, now, noted
        if began is not None:  # the time limit counts from there
            deadline = began + terms.timeout_s
            if now >= deadline:
                break
        elif now >= deadline:
            deadline = math.inf  # its files are still being laid out: wait for the note
        if now >= next_watch:
            if began is not None:  # before, nothing of the program runs, and the job is in memory twice
                _watch(slot, terms, spared)
            now = time.monotonic()
            next_watch = now + _WATCH_SECONDS
    if slot.has_namespaces:
        os.kill(pid, _signal.SIGKILL)
        os.waitpid(pid, 0)  # the kernel ends all of the run with it
    return None, now, noted


def _watch(slot: Slot, terms: job_files.Terms, spared: set[int]) -> None:
    """The limits over all processes of the run together, where neither a control group nor a tmpfs sets them."""
    processes.end_largest_over((terms.memory_mib << 20) + _OWN_BYTES, spared)
    if slot.scratch is not None and processes.folder_bytes(slot.scratch) > terms.disk_bytes:
        for pid in set(processes.descendants()).difference(spared):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _signal.SIGKILL)


def _processes_of(uid: int) -> int:
    """How many threads the user has now: RLIMIT_NPROC counts them all."""
    count = 0
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == uid:
                count += len(os.listdir(f"/proc/{entry}/task"))
        except FileNotFoundError:
            continue
    return count


def _begin(slot: Slot, terms: job_files.Terms, notes: tuple[int, int]) -> NoReturn:
    """Serve the job that waits on the connection. `notes` are the two ends of a pipe to the worker."""
    status = 1
    try:
        _signal.set_wakeup_fd(-1)
        os.close(notes[0])
        status = _run(slot, terms, notes[1])
    except BaseException as error:
        print(f"sandbox: a run failed: {error!r}", file=sys.stderr, flush=True)
    finally:
        # Never out of this function: what called it is the worker's copy.
        os._exit(status)


def _run(slot: Slot, terms: job_files.Terms, notes: int) -> int:
    """Run a job, as the run's first process: receive it, lay out its files, send its output pipes to the server, give
    up this process's rights and execute the program. Returns the exit status. Writes to the worker, on the pipe
    `notes`, when the program began and, where it runs in a child process, that child's wait status."""
    if slot.has_namespaces:
        # This is pid 1 of the run: all of the run's processes end with it, and it ends with the worker. Of their
        # signals it gets those alone that it has a handler for: Python has one for SIGINT, which would end it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, _signal.SIGKILL)
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    # Before the job is read: until this process becomes the program, no other one may read its memory.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    source, stdin, files = job_files.receive(slot.connection, terms.rest_bytes)
    if slot.scratch is None:
        workdir = _NAMESPACE_WORKDIR
        rootfs.mount_private(terms.disk_bytes)
    else:
        workdir = os.path.join(slot.scratch, f"run-{os.getpid()}")
        os.mkdir(workdir, 0o700)
    prepared = slot.prepared[terms.prepared_number - 1] if terms.prepared_number else None
    if prepared is None:
        files[MAIN_FILE] = source
    fault = job_files.lay_out(workdir, files, own_disk=slot.has_namespaces)
    if fault is not None:  # the job is at fault (an impossible file name): tell the server
        slot.replies.send(json.dumps({"unplaceable": fault}).encode())
        return 0
    if slot.confinement.uid is not None:
        job_files.give(workdir, slot.confinement.uid)
    streams = _open_streams(slot.handles, workdir, stdin)
    program = source if prepared is None else prepared
    del source, stdin, files  # the program can look into this frame, and a driver removes its files before it runs one
    if slot.program_is_child(terms):
        pid = os.fork()
        if pid != 0:
            os.write(notes, _PROGRAM_STATUS.pack(_wait_for(pid)))
            return 1  # without the note that the program began, a failed run
    try:
        submission.become(slot.confinement, terms, workdir, streams, notes)
        # Only now: what fails before is no failure of the program. If the worker ended before this process was bound
        # to it, there is nobody to read this, and it fails.
        os.write(notes, _BEGAN.pack(time.monotonic()))
        os.close(notes)
        return submission.run_main(workdir, program)
    except BaseException:  # of the sandbox's own code: the program's errors end in `run_main`
        sys.__excepthook__(*sys.exc_info())  # pyrefly: ignore[bad-argument-type]
        return 1


def _open_streams(handles: socket, workdir: str, stdin: bytes) -> tuple[int, int, int]:
    """Open the program's stdin, stdout and stderr, and return their descriptors. Send the server, over `handles`, the
    reading ends of the latter two and the working directory."""
    out_read, out_write = os.pipe2(os.O_CLOEXEC)
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    # A file and no pipe: it need not be fed while the program runs, and a program that never reads blocks nobody.
    stdin_file = os.memfd_create("stdin")
    job_files.write_all(stdin_file, stdin)
    os.lseek(stdin_file, 0, os.SEEK_SET)
    # Opened before the program can change its rights; with it the server reads files after the end of all processes.
    folder = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    rights = DESCRIPTORS.pack(folder, out_read, error_read)
    handles.sendmsg([workdir.encode()], [(SOL_SOCKET, SCM_RIGHTS, rights)])
    for descriptor in (folder, out_read, error_read):
        os.close(descriptor)
    return stdin_file, out_write, error_write


def _wait_for(program: int) -> int:
    """Collect whatever ends in the run until the program does; its wait status."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid != program:
            continue
        if not os.WIFSTOPPED(status):
            return status
        # It would only hold the slot until the time limit.
        os.kill(program, _signal.SIGCONT)
