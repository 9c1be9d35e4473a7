"""The levels of isolation, how a process takes one on, and which of them this machine allows.

    namespaces  user, mount, pid, network, ipc and uts namespaces, a read-only root file system, seccomp, limits
    landlock    Landlock for files and signals, seccomp without sockets, limits; another user where the server is root
    none        limits only; submissions can read what the server can

Whether a level works is found out by running a program under it, not by asking for versions.
"""

# Plain `os` calls on these paths: they are made for every run.
# ruff: noqa: PTH116, PTH118, PTH120, PTH123, PTH208

import os
import resource
import signal
import sys
from _socket import sethostname, socket, socketpair
from collections.abc import Sequence
from typing import NamedTuple

from coderl_tasks.embedded.sandbox import frames, job_files, kernel, landlock, monitor, rootfs, seccomp, submission

LEVELS = ("namespaces", "landlock")
UNISOLATED = "none"
_FIRST_UID = 1_900_000_000  # one user per worker where the server is root, far from those that people and services have
_SLOT_NAMESPACES = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS
_RUN_NAMESPACES = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
_PROBE_CODE = b"import os, sys\nopen(os.__file__).close()\nopen('out', 'w').write(sys.stdin.read())\n"


class Setting(NamedTuple):
    """What the server tells the fork server: host paths that submissions may read, and the folder for the working
    directories of the level "landlock"."""

    readable: Sequence[str]
    scratch: str


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _map_user(inside: int, uid: int, gid: int) -> None:
    # First: without it the kernel refuses an ordinary user's gid_map.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inside} {uid} 1")
    _write("/proc/self/gid_map", f"{inside} {gid} 1")


def enter(level: str, setting: Setting) -> None:
    """What the fork server does once for its level: with namespaces, move into the submissions' root file system."""
    if level == "namespaces":
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if uid != 0 else 0))
        if uid != 0:
            _map_user(uid, uid, gid)
        rootfs.enter(setting.readable)


def _become_unprivileged(index: int) -> None:
    """From root to a user of this worker's own, so that limits hold and no other worker's process can be
    signalled."""
    # While it is still root: afterwards nobody may.
    os.setgroups([])
    for uid in (_FIRST_UID + index, rootfs.NOBODY):
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return
        except OSError as error:
            # Inside a container with few user ids only the customary one may exist.
            if uid == rootfs.NOBODY:
                raise OSError(f"cannot become another user: {error}") from error


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


def _limits_per_namespace() -> bool:
    """Whether the kernel counts processes against RLIMIT_NPROC in each user namespace by itself (Linux 5.14)."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (5, 14)


def enter_worker(level: str, setting: Setting, index: int) -> submission.Confinement:
    """What a worker does once for its level; how it has to confine its submissions."""
    uid: int | None = None
    ordinary = os.getuid() != 0
    if level == "namespaces":
        # Before the namespaces: the host's root, mapped into a user namespace, is not held by RLIMIT_NPROC.
        if os.getuid() == 0:
            _become_unprivileged(index)
        # A change of user makes /proc/self root's; the maps can only be written by a dumpable process.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        outer_uid, outer_gid = os.getuid(), os.getgid()
        # The namespace takes the limit in force as its own ceiling.
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
        kernel.unshare(_SLOT_NAMESPACES)
        _map_user(rootfs.NOBODY, outer_uid, outer_gid)
        sethostname("sandbox")
    else:
        # Without a pid namespace: what a submission leaves behind comes to this worker, which can end it.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if not ordinary:
            uid = _FIRST_UID + index
    with open("/proc/self/statm") as file:
        base_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return submission.Confinement(
        uid=uid,
        readable=rootfs.readable_paths(setting.readable) if level == "landlock" else None,
        devices=rootfs.DEVICES,
        seccomp_program=b"" if level == UNISOLATED else seccomp.build_program(level == "namespaces"),
        base_bytes=base_bytes,
        base_processes=0,
        shares_user=ordinary and (level != "namespaces" or not _limits_per_namespace()),
    )


def fixed_workdir(level: str) -> str | None:
    """The working directory of every run of this level; None where each has another."""
    return monitor.NAMESPACE_WORKDIR if level == "namespaces" else None


def start_monitor(
    level: str,
    connection: socket,
    confinement: submission.Confinement,
    scratch: str,
    kept: submission.Code | None = None,
) -> int:
    """Fork the monitor of the job that waits on `connection`, in the run's own namespaces; its pid.

    `kept` is the code of those jobs that come without.
    """
    namespaces = level == "namespaces"
    # For each run anew: the limit counts what else this user has running just now.
    if confinement.shares_user:
        confinement = confinement._replace(base_processes=_processes_of(os.getuid()))
    pid = kernel.clone(_RUN_NAMESPACES) if namespaces else os.fork()
    if pid == 0:
        status = 1
        try:
            monitor.serve_job(connection, confinement, namespaces, scratch, kept)
            status = 0
        except monitor.Abandoned:
            pass  # the run has been ended, and there is nobody to tell
        except BaseException as error:
            print(f"sandbox: a run failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            # Never back into the worker's code: this is a copy of it.
            os._exit(status)
    return pid


def _closed_to_others(path: str) -> str | None:
    """The folder on the way to `path` that keeps other users out; None if there is none."""
    folder = path
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            return folder
        folder = os.path.dirname(folder)
    return None


def _missing(level: str, setting: Setting) -> str | None:
    """Why the level cannot even be tried here; None if it can."""
    if not kernel.supported_machine():
        return f"this processor ({os.uname().machine}) is not supported"
    if level == "landlock":
        version = landlock.version()
        if version == 0:
            return "the kernel has no Landlock (Linux 5.13 with lsm=landlock)"
        if version < landlock.SIGNALS_VERSION and os.getuid() != 0:
            return f"Landlock is version {version} here; to confine an ordinary user's signals takes version 6"
        closed = [folder for path in setting.readable if (folder := _closed_to_others(path))]
        if closed and os.getuid() == 0:
            return f"Python lies behind {closed[0]}, closed to other users: run the server as its owner"
    return None


def attempt(level: str, setting: Setting) -> str | None:
    """Run a small program under the level in a process of its own; why it does not work, None if it does."""
    reason = _missing(level, setting)
    if reason is not None:
        return reason
    ours, theirs = socketpair()
    report_read, report_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            enter(level, setting)
            confinement = enter_worker(level, setting, 9_999)
            os.waitpid(start_monitor(level, theirs, confinement, setting.scratch), 0)
        except BaseException as error:
            os.write(report_write, str(error).encode())
        finally:
            os._exit(0)
    theirs.close()
    os.close(report_write)
    job = {"timeout_s": 20, "memory_mib": 512, "files": [], "fetch": ["out"], "kept_code": False}
    try:
        ours.sendall(frames.pack(job, [_PROBE_CODE, b"probe"]))
        header, blobs = frames.receive(ours)
    except (EOFError, OSError):
        header, blobs = {}, []
    finally:
        ours.close()
    with open(report_read, "rb") as file:
        reason = file.read().decode(errors="replace")
    os.waitpid(pid, 0)
    if header.get("fetched") == ["out"] and blobs[-1] == b"probe":
        return None
    if not reason and len(blobs) > 1:
        reason = blobs[1].decode(errors="replace").strip().rpartition("\n")[2]
    return reason or "a trial run under it failed"


def choose(setting: Setting) -> tuple[str | None, str]:
    """The best level that works here, and a line about why not a better one; None if neither works."""
    reasons: list[str] = []
    for level in LEVELS:
        reason = attempt(level, setting)
        if reason is None:
            return level, "; ".join(reasons)
        reasons.append(f"no {level}: {reason}")
    return None, "; ".join(reasons)


def clear_scratch(scratch: str) -> None:
    """Remove what a run that was cut off left behind."""
    for entry in os.listdir(scratch):
        job_files.remove_tree(os.path.join(scratch, entry))


def die_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent's thread ends; exit at once if that has happened
    already."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the request was made, and then nothing would fire.
    if os.getppid() != parent_pid:
        os._exit(1)
