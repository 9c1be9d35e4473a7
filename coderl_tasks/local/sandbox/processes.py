"""The processes of a run: finding them, weighing them, ending them."""

# Plain `os` calls on these paths: they are made for every run.
# ruff: noqa: PTH123, PTH208

import contextlib
import ctypes
import math
import os
import signal
from collections.abc import Collection


def set_command_line(title: bytes) -> None:
    """Put `title` in the place of this process's command line, which all that it forks show too."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title, min(len(title), end - start - 1))


def descendants() -> list[int]:
    """The pids below this process, by the parents named in /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_all(own_pid_namespace: bool) -> None:
    """End every process of the run and collect it; returns when none is left."""
    while True:
        if own_pid_namespace:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for pid in descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0 if own_pid_namespace else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def reap(pid: int) -> int | None:
    """Collect every child that has ended; the wait status of `pid` once it is among them.

    If `pid` has been stopped it is sent on: one who stops it would only hold the slot until the time limit.
    """
    status = None
    while True:
        try:
            done, done_status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return status
        if done == 0:
            return status
        if os.WIFSTOPPED(done_status):
            if done == pid:
                os.kill(pid, signal.SIGCONT)
        elif done == pid:
            status = done_status


def _anonymous_bytes(pid: int) -> int:
    """The memory of a process that is not backed by files, pages shared with its parent counted in full; 0 if
    it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _proportional_bytes(pid: int) -> int:
    """The memory of a process, pages shared by n processes counted as 1/n; 0 if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def end_largest_over(limit_bytes: int, spared: Collection[int]) -> None:
    """Kill the largest process below this one, but for those `spared`, if all together hold more than `limit_bytes`.

    It is what a control group's limit does; this serves where there is no control group.
    """
    pids = [pid for pid in descendants() if pid not in spared]
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
