"""A slot's worker: forks its runs, one at a time, ends each at its limits, and says how it ended.

It never holds a job, since all runs of the slot are forked from it and inherit its memory: the run's first process
reads the job from the connection itself, and its output and files go to the server by descriptors passed to it. The
worker outlives the run, cannot be signalled by it, and answers only when none of its processes is left.
"""

# Plain `os` calls on these paths: they are made for every run.
# ruff: noqa: PTH106, PTH116, PTH118, PTH208

import _signal  # `signal` turns every number into an enum and back
import contextlib
import json
import math
import os
import time
from _socket import MSG_WAITALL
from functools import partial
from typing import NoReturn

from local_servers.sandbox import frames, job_files, kernel, processes, run

_RUN_NAMESPACES = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
_OWN_BYTES = 256 << 20  # the code of the request itself, beside the memory it asked for
_WATCH_SECONDS = 0.1
_CHILD_SIGNAL = (_signal.SIGCHLD,)


class Abandoned(BaseException):
    """The server is gone: nobody waits for the run."""


def _abandon(*_: object) -> NoReturn:
    # The server asks for it, and so does its end: once is enough.
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    raise Abandoned


def serve(slot: run.Slot) -> None:
    """Serve the jobs that come over the connection, one after the other, until it closes or one of them fails.

    Without namespaces the server says after each when it has read its files, and what is left of them is removed; and
    SIGTERM ends what runs, and the worker.
    """
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _CHILD_SIGNAL)
    if slot.scratch is not None:
        # Without a pid namespace, what a program leaves behind comes to this process, which can end it.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        _signal.signal(_signal.SIGTERM, _abandon)
    try:
        while terms := slot.connection.recv(frames.TERMS_BYTES, MSG_WAITALL):
            if not _serve_one(slot, frames.Terms.unpack(terms)):
                break
            if slot.scratch is not None:
                slot.connection.recv(len(frames.DONE))
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


def _serve_one(slot: run.Slot, terms: frames.Terms) -> bool:
    """Run the job that waits on the connection and say how it ended; False if that cannot be said, because what began
    it failed: then the server must see the end of the stream and run the job elsewhere."""
    namespaces = slot.scratch is None
    # For each run anew: the limit counts what else this user has running just now.
    if slot.confinement.shares_user:
        slot = slot._replace(confinement=slot.confinement._replace(base_processes=_processes_of(os.getuid())))
    notes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    begin = partial(run.begin, slot, terms, notes)
    killer: processes.Killer | None = None
    if namespaces:
        pid = kernel.clone(_RUN_NAMESPACES)
        if pid == 0:
            begin()
    elif slot.confinement.ruleset is not None:
        pid, killer = processes.start_killer(begin, slot.confinement.uid)
    else:
        pid = os.fork()
        if pid == 0:
            begin()
    os.close(notes[1])
    # Where the program is another process than the first, that one is trusted.
    spared = {pid} if namespaces and not terms.prepared else set[int]() if killer is None else {killer.pid}
    try:
        status, ended, noted = _wait(slot, terms, pid, notes[0], spared)
    finally:
        os.close(notes[0])
        if not namespaces:
            if killer is not None:
                killer.end_run()
            processes.kill_all()
    if not noted:  # nothing began: it has said so itself, or it failed
        return status == 0
    if namespaces and not terms.prepared and status is not None:
        if len(noted) == run.BEGUN.size:  # the first process died
            return False
        (status,) = run.ENDED.unpack(noted[run.BEGUN.size :])
    code = None if status is None else os.waitstatus_to_exitcode(status)
    slot.replies.send(json.dumps({"return_code": code, "execution_time": ended - _begun(noted)}).encode())
    return True


def _wait(
    slot: run.Slot, terms: frames.Terms, pid: int, notes: int, spared: set[int]
) -> tuple[int | None, float, bytes]:
    """Wait for the end of a run's first process, or kill it at the time limit: (its wait status, None after a time-out;
    when that was; what it noted down)."""
    noted, now = b"", time.monotonic()
    deadline, next_watch = now + terms.timeout_s, now + _WATCH_SECONDS
    while True:
        _signal.sigtimedwait(_CHILD_SIGNAL, max(0.0, min(deadline, next_watch) - now))
        status = processes.reap(pid)
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            noted += os.read(notes, 64)
        if status is not None:
            return status, now, noted
        if noted:
            deadline = _begun(noted) + terms.timeout_s
            if now >= deadline:
                break
        elif now >= deadline:
            deadline = math.inf  # its files are still being laid out
        if now >= next_watch:
            _watch(slot, terms, spared)
            now = time.monotonic()
            next_watch = now + _WATCH_SECONDS
    if slot.scratch is None:
        os.kill(pid, _signal.SIGKILL)
        os.waitpid(pid, 0)  # and with it, all of the run
    return None, now, noted


def _begun(noted: bytes) -> float:
    begun: float = run.BEGUN.unpack(noted[: run.BEGUN.size])[0]
    return begun


def _watch(slot: run.Slot, terms: frames.Terms, spared: set[int]) -> None:
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
