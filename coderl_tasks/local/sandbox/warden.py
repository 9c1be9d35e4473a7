"""Ending all of a candidate's processes at once where no pid namespace does it.

Processes that fork on and on cannot be ended one by one: by the time a pid is found and signalled, its child runs.
`kill(-1)` is atomic, but reaches all that the caller may signal. So each run has a warden, who may signal nobody but
the run: Landlock confines its signals to its own descendants (version 6), or it has become the slot's own user (a
server of root's). The keeper stays the candidate's parent.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NamedTuple

from coderl_tasks.local.sandbox import kernel, landlock


class Warden(NamedTuple):
    """A warden from its keeper's side. When `alive` is closed, by the keeper's own end too, it ends the run."""

    pid: int
    alive: int

    def end_run(self) -> None:
        """Kill every process of the run; they are still to be collected."""
        os.close(self.alive)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(candidate: Callable[[], None], uid: int | None) -> tuple[int, Warden]:
    """Fork a warden, who forks a child of this process that runs `candidate` and never returns: (the child's pid, him).

    `uid` is the user that only this slot has, None where there is none. OSError if either cannot be started.
    """
    report_read, report_write = os.pipe2(os.O_CLOEXEC)
    alive_read, alive_write = os.pipe2(os.O_CLOEXEC)
    warden_pid = os.fork()
    if warden_pid == 0:
        try:
            os.close(report_read)
            os.close(alive_write)
            _watch(candidate, uid, report_write, alive_read)
        except BaseException as error:
            print(f"sandbox: a warden failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)
    os.close(report_write)
    os.close(alive_read)
    pid = os.read(report_read, 32)
    os.close(report_read)
    if not pid:
        os.close(alive_write)
        raise OSError("the process that runs the program could not be started")
    return int(pid), Warden(warden_pid, alive_write)


def _watch(candidate: Callable[[], None], uid: int | None, report: int, alive: int) -> None:
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if not landlock.confine_signals() and uid is None:
        raise OSError("neither Landlock nor a user of its own confines the signals of a run")
    pid = kernel.clone(kernel.CLONE_PARENT)
    if pid == 0:
        candidate()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    os.write(report, str(pid).encode())
    os.close(report)
    os.read(alive, 1)
    os.kill(-1, signal.SIGKILL)
