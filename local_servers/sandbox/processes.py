"""The processes of a run: finding them, weighing them, ending all of them at once.

Processes that fork on and on cannot be ended one by one: by the time a pid is found and signalled, its child runs.
`kill(-1)` is atomic, but reaches all that the caller may signal. In a pid namespace that is the run alone. Elsewhere
each run has a process for it, the killer, which may signal nobody but the run: Landlock confines its signals to its own
descendants (version 6), or it has become the worker's own user (where the server is root).
"""

import contextlib
import ctypes
import math
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

from local_servers.sandbox import kernel, landlock


def set_command_line(title: bytes) -> None:
    """Put `title` in the place of this process's command line, which all that it forks show too."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    # The name, which is in brackets and may hold anything, is cut off before: fields are counted from behind it.
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title, min(len(title), end - start - 1))


def descendants() -> list[int]:
    """The pids below this process, by the children or, on a kernel that lists none, the parents named in /proc."""
    own = os.getpid()
    # A scan of all processes of a large host, for each slot, takes a good part of a core.
    children_of = _children if os.path.exists(f"/proc/{own}/task/{own}/children") else _scanned_children()
    found, queue = [], [own]
    while queue:
        below = children_of(queue.pop())
        found += below
        queue += below
    return found


def _children(pid: int) -> set[int]:
    """The children that each thread of `pid` has; none if it is gone. One that is orphaned meanwhile can be missed: it
    is then found below whoever adopts it, the next time."""
    children: set[int] = set()  # a thread that ends leaves its children to another one, which would name them again
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children.update(map(int, file.read().split()))
    return children


def _scanned_children() -> Callable[[int], set[int]]:
    """As `_children`, by the parents of all processes of the host."""
    children: defaultdict[int, set[int]] = defaultdict(set)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                children[int(file.read().rpartition(b")")[2].split()[1])].add(int(entry))
    return children.__getitem__


def kill_all() -> None:
    """End every process below this one, which adopts orphans, and collect it; returns when none is left."""
    while True:  # again and again: what a process forked before it died is only found, or orphaned to us, afterwards
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def reap(pid: int) -> int | None:
    """Collect every child that has ended; the wait status of `pid` once it is among them. If `pid` has been stopped it
    is continued: it would only hold the slot until the time limit."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0] != 0:
            ended, its_status = found
            if ended == pid and os.WIFSTOPPED(its_status):
                os.kill(pid, signal.SIGCONT)
            elif ended == pid:
                status = its_status
    return status


def _listed_bytes(pid: int, file: str, *names: bytes) -> int:
    with open(f"/proc/{pid}/{file}", "rb") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(names))


def _anonymous_bytes(pid: int) -> int:
    """The memory of a process not backed by files, pages shared with others counted in full; 0 if it is gone."""
    # Not statm: what it calls shared holds both the pages of files and shared memory.
    with contextlib.suppress(OSError):
        return _listed_bytes(pid, "status", b"RssAnon:", b"RssShmem:")
    return 0


def _proportional_bytes(pid: int) -> int:
    """The memory of a process, pages shared by n processes counted as 1/n; 0 if it is gone."""
    try:
        return _listed_bytes(pid, "smaps_rollup", b"Pss:")
    except PermissionError:  # any process may close this file (PR_SET_DUMPABLE), but not the other count's
        return _anonymous_bytes(pid)
    except OSError:
        return 0


def end_largest_over(limit_bytes: int, spared: Collection[int]) -> None:
    """Kill the largest process below this one, but for those `spared`, if all together hold more than `limit_bytes`:
    what a control group's limit does, where there is none."""
    pids = [pid for pid in descendants() if pid not in spared]
    # The cheap count first, which counts a page that n processes share n times. For the exact one the kernel walks all
    # page tables.
    if sum(map(_anonymous_bytes, pids)) <= limit_bytes:
        return
    sizes = {pid: _proportional_bytes(pid) for pid in pids}
    if sum(sizes.values()) > limit_bytes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(max(sizes, key=lambda pid: sizes[pid]), signal.SIGKILL)


def folder_bytes(folder: str) -> float:
    """What the files below a folder occupy on disk; infinity where something hides from being counted."""
    total, waiting = 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError:  # a path too long, or a folder closed to us
            return math.inf
    return total


class Killer(NamedTuple):
    """A killer as its worker sees it. When `alive` is closed, by the worker's own end too, it ends the run."""

    pid: int
    alive: int

    def end_run(self) -> None:
        """Kill every process of the run; they are still to be collected."""
        os.close(self.alive)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start_killer(begin_run: Callable[[], None], uid: int | None) -> tuple[int, Killer]:
    """Start a run where no pid namespace ends it: fork a process, the killer, which can kill all processes of the run
    at once, and which clones the run's first process as a child of the caller (CLONE_PARENT). That one calls
    `begin_run`, which never returns. Returns (pid of the first process, the killer).

    The killer becomes the user `uid`, which only this worker has; where that is None, Landlock confines its signals.
    OSError if either process cannot be started."""
    # Over one pipe the killer reports the first process's pid; the end of the other tells the killer to act.
    report_read, report_write = os.pipe2(os.O_CLOEXEC)
    alive_read, alive_write = os.pipe2(os.O_CLOEXEC)
    killer_pid = os.fork()
    if killer_pid == 0:
        try:
            os.close(report_read)
            os.close(alive_write)
            _kill_when_closed(begin_run, uid, report_write, alive_read)
        except BaseException as error:
            print(f"sandbox: a killer failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)
    os.close(report_write)
    os.close(alive_read)
    pid = os.read(report_read, 32)  # its digits
    os.close(report_read)
    if not pid:  # the killer ended before it reported
        os.close(alive_write)
        raise OSError("the process that runs the program could not be started")
    return int(pid), Killer(killer_pid, alive_write)


def _kill_when_closed(begin_run: Callable[[], None], uid: int | None, report: int, alive: int) -> None:
    """The killer's process: start `begin_run` as a child of the worker, write its pid to `report`, wait until the
    worker closes the other end of `alive` or dies, then kill every process that this one may signal. That must be the
    run alone: Landlock's scope confines signals to it, or the user `uid`, which only this worker has."""
    # Undo the worker's handlers, which are for the worker.
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    # Before the fork: the submission must be inside the scope, or kill(-1) would not reach it. It confines itself once
    # more, into a scope below this one, so that it cannot signal the killer.
    if not landlock.confine_signals() and uid is None:
        raise OSError("neither Landlock nor a user of its own confines the signals of a run")
    # CLONE_PARENT makes it the worker's child, not the killer's: the worker waits for its exit status.
    pid = kernel.clone(kernel.CLONE_PARENT)
    if pid == 0:
        begin_run()
    if uid is not None:
        kernel.become_user(uid)
        # The submission has the same user: it must not trace this process or read its memory.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    # Only now: a worker that has the pid can count on being able to end the run.
    os.write(report, str(pid).encode())
    os.close(report)
    os.read(alive, 1)  # the end of the stream is the signal: it comes also when the worker was killed
    os.kill(-1, signal.SIGKILL)
