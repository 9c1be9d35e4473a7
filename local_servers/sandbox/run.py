"""The first process of a run: it reads the job, lays out its files, hands the server what it needs to follow the run,
and becomes the program.

Forked from the slot's worker, which waits for it. With namespaces it is pid 1 of the run. Then a program is run by a
child of its, since the kernel lets pid 1 ignore most signals, so that a program would not end as under an ordinary
interpreter; only the prepared program, which is known to need none of them, takes its place.
"""

# Plain `os` calls on these paths: they are made for every run.
# ruff: noqa: PTH102, PTH118

import _signal  # `signal` turns every number into an enum and back
import json
import os
import struct
import sys
import time
from _socket import SCM_RIGHTS, SOL_SOCKET, socket
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple, NoReturn

from local_servers.sandbox import frames, job_files, kernel, rootfs, submission
from local_servers.sandbox.submission import MAIN_FILE, Confinement

NAMESPACE_WORKDIR = "/tmp"
BEGUN, ENDED = struct.Struct("d"), struct.Struct("i")
"""What it notes down for the worker: when the program began (seconds of the monotonic clock), and where the program is
a child of its, the wait status of that."""
DESCRIPTORS = struct.Struct("3i")


class Slot(NamedTuple):
    """What all runs of a slot have in common.

    `scratch` is the folder, made by the worker, for their working directories; None with namespaces. Jobs come over
    `connection`, answers go to `replies`, what a run hands over to `handles`. `prepared` are the programs whose
    definitions are loaded.
    """

    confinement: Confinement
    scratch: str | None
    connection: socket
    replies: socket
    handles: socket
    prepared: Sequence[ModuleType]


def begin(slot: Slot, terms: frames.Terms, notes: tuple[int, int]) -> NoReturn:
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


def _run(slot: Slot, terms: frames.Terms, notes: int) -> int:
    namespaces = slot.scratch is None
    if namespaces:
        # All processes of the run end with this one, and it ends with the worker.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, _signal.SIGKILL)
    # Before the job is read: until it becomes the program, nobody is to look into it.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    names, (source, stdin, *contents) = frames.receive(slot.connection, terms.n_blobs)
    if slot.scratch is None:
        rootfs.mount_private(terms.disk_bytes)
        workdir = NAMESPACE_WORKDIR
    else:
        workdir = os.path.join(slot.scratch, f"run-{os.getpid()}")
        os.mkdir(workdir, 0o700)
    files = dict(zip(names, contents, strict=True))
    if not terms.prepared:
        files[MAIN_FILE] = source
    fault = job_files.lay_out(workdir, files, own_disk=namespaces)
    if fault is not None:
        slot.replies.send(json.dumps({"unplaceable": fault}).encode())
        return 0
    if slot.confinement.uid is not None:
        job_files.give(workdir, slot.confinement.uid)
    streams = _hand_over(slot.handles, workdir, stdin)
    # If the worker ended before this process was bound to it, there is nobody to read this, and it fails.
    os.write(notes, BEGUN.pack(time.monotonic()))
    if namespaces and not terms.prepared:
        pid = os.fork()
        if pid != 0:
            os.write(notes, ENDED.pack(_wait_for(pid)))
            return 0
    program = slot.prepared[terms.prepared - 1] if terms.prepared else bytes(source)
    try:
        submission.become(slot.confinement, terms, workdir, streams)
        return submission.run_main(workdir, program)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        return 1


def _hand_over(handles: socket, workdir: str, stdin: memoryview) -> tuple[int, int, int]:
    """Give the server the working directory and the reading ends of the output; the program's three descriptors."""
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
