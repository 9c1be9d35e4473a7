"""The levels of isolation, how a process takes one on, and which of them this machine allows.

    namespaces  user, mount, pid, network, ipc and uts namespaces, a read-only root file system, seccomp, limits
    landlock    Landlock for files and signals, seccomp without sockets, limits; another user where the server is root
    none        limits only; submissions can read what the server can

Whether a level works is found out by running a program under it, not by asking for versions.
"""

import contextlib
import os
import resource
import signal
from _socket import AF_UNIX, CMSG_LEN, SOCK_SEQPACKET, sethostname, socket, socketpair
from collections.abc import Sequence
from typing import NamedTuple

from local_servers.sandbox import job_files, kernel, landlock, rootfs, seccomp, submission, worker

NAMESPACES = "namespaces"
LEVELS = (NAMESPACES, "landlock")
UNISOLATED = "none"
_FIRST_UID = 1_900_000_000  # far from the users that people and services have
_SLOT_NAMESPACES = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS
_PROBE_CODE = b"import os, sys\nopen(os.__file__).close()\nopen('out', 'w').close()\nprint(sys.stdin.read(), end='')\n"
_PROBE_INPUT = b"probe"


class Setting(NamedTuple):
    """What the server tells the fork server: host paths that submissions may read, and the folder for the working
    directories of the level "landlock"."""

    readable: Sequence[str]
    scratch: str


def _map_user(inside: int, uid: int, gid: int) -> None:
    # First: without it the kernel refuses an ordinary user's gid_map.
    rootfs.write("/proc/self/setgroups", "deny")
    rootfs.write("/proc/self/uid_map", f"{inside} {uid} 1")
    rootfs.write("/proc/self/gid_map", f"{inside} {gid} 1")


def enter(level: str, setting: Setting) -> None:
    """What the fork server does once for its level: with namespaces, move into the submissions' root file system."""
    if level != NAMESPACES:
        return
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if uid != 0 else 0))
    if uid != 0:
        _map_user(uid, uid, gid)
    rootfs.enter(setting.readable)


def _own_uid() -> int:
    """The user of this worker alone where the server is root: several servers may run, and number their slots alike."""
    return _FIRST_UID + os.getpid()  # a pid is at most 2**22


def _limits_per_namespace() -> bool:
    """Whether the kernel counts processes against RLIMIT_NPROC in each user namespace by itself (Linux 5.14)."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (5, 14)


def enter_worker(level: str, setting: Setting) -> tuple[submission.Confinement, str | None]:
    """What a worker does once to take on its level of isolation: with namespaces it moves into new ones; otherwise it
    makes a scratch folder for its runs. Where the server is root it has a user of its own. Returns how it has to
    confine each submission, and the scratch folder (None with namespaces, where each run has its own file system)."""
    is_root = os.getuid() == 0
    uid: int | None = None  # the user that each submission becomes; only root can change it
    scratch: str | None = None
    if level == NAMESPACES:
        _enter_namespaces()
    else:
        scratch = os.path.join(setting.scratch, f"worker-{os.getpid()}")
        os.mkdir(scratch, 0o711)
        uid = _own_uid() if is_root else None
    # Address space that the warm interpreter uses already: a submission's memory limit comes on top.
    with open("/proc/self/statm") as file:
        base_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    confinement = submission.Confinement(
        uid=uid,
        ruleset=_ruleset(setting, scratch) if level == "landlock" and scratch is not None else None,
        devices=rootfs.DEVICES,
        seccomp_filter=None if level == UNISOLATED else seccomp.Filter(seccomp.build_program(level == NAMESPACES)),
        base_bytes=base_bytes,
        # The kernel counts processes per user, or per user namespace: either can be this worker's alone.
        shares_user=not (is_root or (level == NAMESPACES and _limits_per_namespace())),
    )
    return confinement, scratch


def _enter_namespaces() -> None:
    """Move this worker into new namespaces, in which it is `nobody`. From root, first become a user of this worker's
    own: RLIMIT_NPROC does not hold for root, not even in a user namespace that maps root to another user; and it can
    signal no other worker's process."""
    if os.getuid() == 0:
        try:
            kernel.become_user(_own_uid())
        except OSError:  # inside a container with few user ids only the customary one may exist
            try:
                kernel.become_user(rootfs.NOBODY)
            except OSError as error:
                raise OSError(f"cannot become another user: {error}") from error
    # A change of user makes /proc/self root's; the maps can only be written by a dumpable process.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    outer_uid, outer_gid = os.getuid(), os.getgid()
    # The soft limit becomes the ceiling of the whole new namespace: make it as high as it can be.
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    kernel.unshare(_SLOT_NAMESPACES)
    _map_user(rootfs.NOBODY, outer_uid, outer_gid)
    sethostname("sandbox")


def _ruleset(setting: Setting, scratch: str) -> int:
    """Landlock's rules for a worker: it knows no exception, so a folder in which something is installed is opened entry
    by entry."""
    readable, listed = [], []
    for path in setting.readable:
        installed = rootfs.installed_in(path)
        if installed:
            listed.append(path)
            readable += [entry.path for entry in os.scandir(path) if entry.path not in installed]
        else:
            readable.append(path)
    return landlock.ruleset(readable, listed, rootfs.DEVICES, scratch)


def _closed_to_others(path: str) -> str | None:
    """The folder on the way to `path` that keeps other users out; None if there is none."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            return folder
        folder = os.path.dirname(folder)
    return None


def _missing(level: str, setting: Setting) -> str | None:
    """Why the level cannot even be tried here; None if it can."""
    if os.uname().machine not in kernel.NUMBERS:
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


def ending(level: str) -> signal.Signals:
    """What ends a worker and its run: without namespaces it is asked to, as nothing else ends all of the run."""
    return signal.SIGKILL if level == NAMESPACES else signal.SIGTERM


def attempt(level: str, setting: Setting) -> str | None:
    """Runs a small probe program under a level of isolation, as a worker would. Returns why the level does not work,
    None if the probe printed its stdin."""
    reason = _missing(level, setting)
    if reason is not None:
        return reason
    # A worker's sockets: jobs go in, answers come out, and so do the descriptors of a run's outputs.
    jobs, their_jobs = socketpair()
    replies, their_replies = socketpair(AF_UNIX, SOCK_SEQPACKET)
    handles, their_handles = socketpair(AF_UNIX, SOCK_SEQPACKET)
    error_read, error_write = os.pipe()  # for the text of what the worker raises
    pid = os.fork()
    if pid == 0:
        try:
            for end in (jobs, replies, handles):
                end.close()
            enter(level, setting)
            confinement, scratch = enter_worker(level, setting)
            worker.serve(worker.Slot(confinement, scratch, their_jobs, their_replies, their_handles, prepared=[]))
        except BaseException as error:
            os.write(error_write, str(error).encode())
        finally:
            os._exit(0)
    for end in (their_jobs, their_replies, their_handles):
        end.close()
    os.close(error_write)
    output = _probe_output(jobs, handles)
    for end in (jobs, replies, handles):
        end.close()
    with open(error_read, "rb") as file:
        reason = file.read().decode(errors="replace")
    os.waitpid(pid, 0)
    if output == _PROBE_INPUT:
        return None
    return reason or output.decode(errors="replace").strip().rpartition("\n")[2] or "a trial run under it failed"


def _probe_output(jobs: socket, handles: socket) -> bytes:
    """Sends the probe program to a worker. Returns what it wrote to stdout and stderr, nothing if the worker ended."""
    terms = job_files.Terms(timeout_s=20, memory_mib=512, disk_bytes=1 << 20, prepared_number=0)
    output = b""
    with contextlib.suppress(OSError):  # the worker has ended, and what it reported says why
        jobs.sendall(terms.message(_PROBE_CODE, _PROBE_INPUT, files={}))
        # The worker hands over the run's folder and the reading ends of its stdout and stderr.
        _, rights, _, _ = handles.recvmsg(4096, CMSG_LEN(worker.DESCRIPTORS.size))
        for _, _, descriptors in rights:
            folder, *pipes = worker.DESCRIPTORS.unpack(descriptors)
            os.close(folder)
            for pipe in pipes:
                with open(pipe, "rb") as file:
                    output += file.read()
    return output


def choose(setting: Setting) -> tuple[str | None, str]:
    """The best level that works here, and a line about why not a better one; None if neither works."""
    reasons: list[str] = []
    for level in LEVELS:
        reason = attempt(level, setting)
        if reason is None:
            return level, "; ".join(reasons)
        reasons.append(f"no {level}: {reason}")
    return None, "; ".join(reasons)


def die_with(parent_pid: int, ending: int) -> None:
    """Ask the kernel for this signal when the thread that forked this process ends; exit at once if that has happened
    already."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, ending)
    # The parent may have ended before the request was made, and then nothing would fire.
    if os.getppid() != parent_pid:
        os._exit(1)
