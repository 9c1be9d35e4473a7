"""Linux system calls that Python's standard library lacks, through ctypes; each raises OSError as `os` would.

Pure standard library, because the fork server imports it outside of any virtual environment. Calls are made with the
interpreter lock held (PyDLL): the callers are single-threaded, and `clone` must not let another thread run.
"""

import ctypes
import os
import struct
from typing import NamedTuple

_libc = ctypes.PyDLL(None, use_errno=True)

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEW_ANY = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
_SIGCHLD = 17

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE, _MS_RELATIME = 4096, 16384, 1 << 18, 1 << 21
_MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_CAPABILITY_VERSION_3 = 0x20080522


class Numbers(NamedTuple):
    """The numbers of the system calls made by number; those from 424 on are the same on every machine."""

    clone: int
    pivot_root: int
    capset: int
    mount_setattr: int = 442
    landlock_create_ruleset: int = 444
    landlock_add_rule: int = 445
    landlock_restrict_self: int = 446


NUMBERS = {"x86_64": Numbers(56, 155, 126), "aarch64": Numbers(220, 41, 91)}


def numbers() -> Numbers:
    """The system call numbers of this machine; OSError on one that is not supported."""
    machine = os.uname().machine
    if machine not in NUMBERS:
        raise OSError(f"no system call numbers for {machine}")
    return NUMBERS[machine]


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def syscall(number: int, *args: object) -> int:
    """A raw system call; integers and pointers are passed as 64 bits wide."""
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _check(_libc.syscall(ctypes.c_long(number), *wide), f"syscall {number}")


def prctl(option: int, value: int | ctypes.c_void_p = 0, second: int | ctypes.c_void_p = 0) -> int:
    wide = [ctypes.c_ulong(v) if isinstance(v, int) else v for v in (value, second, 0, 0)]
    return _check(_libc.prctl(option, *wide), f"prctl {option}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    names = (source.encode(), target.encode(), kind.encode() or None)
    _check(_libc.mount(*names, ctypes.c_ulong(flags), options.encode() or None), target)


def unmount(target: str) -> None:
    """Detach a mount at once; it goes away when nothing uses it any more."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), target)


def pivot_root(new_root: str, put_old: str) -> None:
    syscall(numbers().pivot_root, ctypes.c_char_p(new_root.encode()), ctypes.c_char_p(put_old.encode()))


def make_read_only(target: str) -> None:
    """Make a mount and all below it read-only and without set-uid, keeping its other flags (Linux 5.12)."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    path, buffer = ctypes.c_char_p(target.encode()), ctypes.c_char_p(attributes)
    syscall(numbers().mount_setattr, _AT_FDCWD, path, _AT_RECURSIVE, buffer, len(attributes))


def remount_read_only(target: str) -> None:
    """Make one mount read-only and without set-uid, by the call that every kernel has."""
    present = os.statvfs(target).f_flag
    # An unprivileged process may not clear these; only relatime has another bit in the two interfaces.
    kept = present & (MS_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    kept |= _MS_RELATIME if present & os.ST_RELATIME else 0
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def clone(flags: int) -> int:
    """fork() into new namespaces in one call, with the interpreter's own fork handlers: 0 in the child, which becomes
    pid 1 where `flags` has CLONE_NEWPID; the child's pid in the parent."""
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    pid = _libc.syscall(ctypes.c_long(numbers().clone), ctypes.c_long(flags | _SIGCHLD), *[ctypes.c_long(0)] * 4)
    if pid == 0:
        api.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    api.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, os.strerror(code), "clone")
    return int(pid)


def become_user(uid: int) -> None:
    """From root to another user, whose only group has the same number."""
    # While it is still root: afterwards nobody may.
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_capabilities() -> None:
    """Give up every capability; with no_new_privs set, no later exec brings one back."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    syscall(numbers().capset, ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))
