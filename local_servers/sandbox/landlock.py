"""Landlock: what a submission may touch where namespaces are forbidden (Linux 5.13 and later, for any user)."""

import ctypes
import os
import struct
from collections.abc import Sequence

from local_servers.sandbox import kernel

_VERSION_QUERY = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE
# How many file system rights each interface version knows (bit count); later versions add other kinds of rights.
_RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_NET_RIGHTS = 3  # bind and connect TCP, from version 4 on
_SCOPES = 3  # abstract UNIX sockets and signals, from version 6 on
SIGNALS_VERSION = 6


def version() -> int:
    """The kernel's Landlock interface version; 0 where it has none."""
    try:
        return kernel.syscall(kernel.numbers().landlock_create_ruleset, 0, 0, _VERSION_QUERY)
    except OSError:
        return 0


def confine_signals() -> bool:
    """Confine the signals of this process and its descendants to each other, for good; no_new_privs must be set. Those
    that confine themselves further below it cannot signal this process. False where the kernel cannot."""
    if version() < SIGNALS_VERSION:
        return False
    _enforce(_ruleset(struct.pack("QQQ", 0, 0, _SCOPES), rights=0, allowed=()))
    return True


def _rights() -> int:
    """All rights to files that this kernel's version knows."""
    return (1 << _RIGHTS_OF_VERSION.get(version(), 16)) - 1


def ruleset(readable: Sequence[str], listed: Sequence[str], devices: Sequence[str], scratch: str) -> int:
    """The rules that all runs of a worker have in common, for `restrict`; a descriptor. `readable` may be read and
    executed, folders in `listed` listed, `devices` read and written, everything done below `scratch`; no TCP, and from
    interface version 6 on no signal to a process outside."""
    abi, rights = version(), _rights()
    attributes = struct.pack("QQQ", rights, _NET_RIGHTS if abi >= 4 else 0, _SCOPES if abi >= SIGNALS_VERSION else 0)
    # As long as this kernel's version knows: an older one refuses fields that it has no name for.
    size = 24 if abi >= SIGNALS_VERSION else 16 if abi >= 4 else 8
    allowed = [(path, _READ) for path in readable] + [(path, _READ_DIR) for path in listed]
    allowed += [(path, _READ_FILE | _WRITE_FILE | _IOCTL_DEV) for path in devices]
    return _ruleset(attributes[:size], rights, [*allowed, (scratch, rights)])


def restrict(common: int, devices: Sequence[str], writable: str) -> None:
    """Confine this process and its descendants for good, by a `ruleset`, and to write below `writable` alone;
    no_new_privs must be set."""
    rights = _rights() & ~_READ
    allowed = [(path, _WRITE_FILE | _IOCTL_DEV) for path in devices]
    own = _ruleset(struct.pack("Q", rights), rights, [*allowed, (writable, rights)])
    _enforce(common)
    _enforce(own)


def _enforce(ruleset: int) -> None:
    kernel.syscall(kernel.numbers().landlock_restrict_self, ruleset, 0)
    os.close(ruleset)


def _ruleset(attributes: bytes, rights: int, allowed: Sequence[tuple[str, int]]) -> int:
    calls = kernel.numbers()
    made = kernel.syscall(calls.landlock_create_ruleset, ctypes.c_char_p(attributes), len(attributes), 0)
    for path, access in allowed:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            # The kernel refuses rights of folders for a file.
            access &= _FILE_RIGHTS | _TRUNCATE | _IOCTL_DEV
        rule = struct.pack("=Qi", access & rights, parent)
        kernel.syscall(calls.landlock_add_rule, made, _RULE_PATH_BENEATH, ctypes.c_char_p(rule), 0)
        os.close(parent)
    return made
