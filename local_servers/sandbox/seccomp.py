"""The system call filter of a submission: a deny list, written as a classic BPF program without libseccomp.

What it covers: calls that change namespaces, mounts, modules, clocks or the machine; that look into other processes;
kernel interfaces with a bad record (bpf, io_uring, userfaultfd, perf events, keyrings); every socket family but
AF_UNIX; locks and leases that take no more than the right to read a file, and would hold up the host's own programs;
what lets one run leave a mark for another on a file that both may read, or look for one (the page cache's calls, hints,
watches, the ioctls of file systems); shared memory that stays when no process maps it (shmget); and to outlive the
process that a run is bound to. They fail with EPERM. What is only advice to the kernel, or flushes the host's disks,
does nothing and says that it worked. `clone3` says ENOSYS: the C library falls back to `clone`, whose flags can be
inspected. What it does not cover: an ordinary call with a bug in the kernel behind it; and files, processes and memory,
the business of namespaces or Landlock and of the resource limits.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from local_servers.sandbox import kernel

# name: (x86_64, aarch64); -1 where the machine has no such call
_Calls = dict[str, tuple[int, int]]
_DENIED: _Calls = (
    {"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)}
    | {"process_madvise": (440, 440), "pidfd_getfd": (438, 438), "personality": (135, 92), "vmsplice": (278, 75)}
    | {"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51)}
    | {"mount_setattr": (442, 442), "open_tree": (428, 428), "move_mount": (429, 429), "fspick": (433, 433)}
    | {"fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "unshare": (272, 97), "setns": (308, 268)}
    | {"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)}
    | {"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "memfd_secret": (447, 447)}
    | {"bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241)}
    | {"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)}
    | {"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "vhangup": (153, 58)}
    | {"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)}
    | {"swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443)}
    | {"settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266)}
    | {"syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162)}
    | {"modify_ldt": (154, -1), "iopl": (172, -1), "ioperm": (173, -1), "uselib": (134, -1)}
    | {"flock": (73, 32), "mincore": (27, 232), "cachestat": (451, 451), "inotify_add_watch": (254, 27)}
    | {"shmget": (29, 194)}
)
# These do nothing, and say that it worked.
_IDLE: _Calls = {"fadvise64": (221, 223), "readahead": (187, 213), "sync": (162, 81), "syncfs": (306, 267)}
# Landlock leaves these to whoever owns the file, wherever it is; with namespaces all but the run's own are read-only.
_IDLE_WITHOUT_NAMESPACES: _Calls = (
    {"chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452)}
    | {"chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54)}
    | {"utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88)}
    | {"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)}
    | {"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466)}
    | {"file_setattr": (469, 469)}
)
# Without an ipc namespace these outlive the run; without a network namespace a socket reaches the host.
_DENIED_WITHOUT_NAMESPACES: _Calls = (
    {"semget": (64, 190), "msgget": (68, 186)}
    | {"mq_open": (240, 180)}
    | {"socket": (41, 198), "connect": (42, 203), "sendto": (44, 206)}
)
# Calls on another process that only ask for the same user; the process id is their first argument.
_OWN_PROCESS_ONLY: _Calls = (
    {"prlimit64": (302, 261), "move_pages": (279, 239), "migrate_pages": (256, 238)}
    | {"sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119)}
    | {"sched_setparam": (142, 118), "sched_setattr": (314, 274)}
)
# Calls on another process that can change all of a user's as well: by the first argument that asks for that.
_PRIORITIES = {"setpriority": ((141, 140), 2), "ioprio_set": ((251, 30), 3)}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_IOCTL = (16, 29)
_FCNTL = (72, 25)
_MADVISE = (28, 233)
_PREADV2 = (327, 286)
_KILL_CALL = (62, 129)
_PRCTL = (157, 167)
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_TIOCSTI = 0x5412
_TERMINAL_IOCTLS, _IOCTL_KIND_MASK = 0x5400, 0xFFFFFF00
_FCNTL_DENIED = (1024, 1026, 1036, 1038)  # F_SETLEASE, F_NOTIFY, F_SET_RW_HINT, F_SET_FILE_RW_HINT
_MADVISE_IDLE = (12, 20, 21)  # MADV_MERGEABLE, MADV_COLD, MADV_PAGEOUT
_AF_UNIX = 1
_SIGKILL = 9
_SIGNALS_THAT_END_NOTHING = (0, 17, 18, 19)  # none, SIGCHLD, SIGCONT, SIGSTOP
_SOCK_STREAM, _SOCK_TYPE_MASK = 1, 0xF

_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG2, _ARG5 = 0, 4, 16, 24, 32, 56
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SECCOMP_MODE_FILTER = 2
_LAST_GUARDS = 3  # of a search: so few are looked through


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _deny(code: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | code)


_ALLOWED, _REFUSED = _instruction(_RETURN, _ALLOW), _deny(errno.EPERM)


def _answer_by_value(argument: int, values: Sequence[int], listed: bytes, otherwise: bytes) -> list[bytes]:
    """Answer `listed` to a call whose argument (its offset) is one of the values, `otherwise` to any other."""
    tests = (_instruction(_JUMP_EQUAL, value, len(values) - at) for at, value in enumerate(values))
    return [_instruction(_LOAD, argument), *tests, otherwise, listed]


def _allow_only(argument: int, values: Sequence[int], otherwise: bytes = _REFUSED) -> list[bytes]:
    """Allow a call whose argument is one of the values; answer `otherwise` to any other."""
    return _answer_by_value(argument, values, _ALLOWED, otherwise)


def _refuse_value(argument: int, value: int) -> list[bytes]:
    """Refuse a call whose argument is `value`; for any other go on with the next instruction."""
    return [_instruction(_LOAD, argument), _instruction(_JUMP_EQUAL, value, if_true=0, if_false=1), _REFUSED]


def _allow_other_than(argument: int, value: int) -> list[bytes]:
    """Allow a call whose argument is not `value`; for one with `value` go on with the next instruction."""
    return [_instruction(_LOAD, argument), _instruction(_JUMP_EQUAL, value, if_true=1, if_false=0), _ALLOWED]


def build_program(namespaces: bool) -> bytes:
    """The system call filter of a submission, as an array of `struct sock_filter` (BPF) for this machine. `namespaces`
    says whether the submission has namespaces of its own; without them it gets no sockets, and no call that changes
    another process of the same user. A filter is a list of guards: a call's number, and the instructions that decide by
    its arguments; what no guard names is allowed. `if_true` and `if_false` say how many to skip."""
    column = 0 if os.uname().machine == "x86_64" else 1  # of the tables of call numbers
    denied, idle = _DENIED, _IDLE
    new_namespaces = _instruction(_JUMP_SET, kernel.CLONE_NEW_ANY, if_true=0, if_false=1)
    terminal_only = [
        _instruction(_AND, _IOCTL_KIND_MASK),
        _instruction(_JUMP_EQUAL, _TERMINAL_IOCTLS, if_true=1, if_false=0),
        _deny(errno.ENOTTY),  # what a file system answers that has no such call
        _ALLOWED,
    ]
    guarded = [
        (_CLONE3, [_deny(errno.ENOSYS)]),
        (_CLONE, [_instruction(_LOAD, _ARG0), new_namespaces, _REFUSED, _ALLOWED]),
        (_IOCTL, [*_refuse_value(_ARG1, _TIOCSTI), *terminal_only]),
        (_FCNTL, _answer_by_value(_ARG1, _FCNTL_DENIED, _REFUSED, otherwise=_ALLOWED)),
        (_MADVISE, _answer_by_value(_ARG2, _MADVISE_IDLE, _deny(0), otherwise=_ALLOWED)),
        # Any flag, and RWF_NOWAIT above all, which tells what is in the page cache.
        (_PREADV2, _allow_only(_ARG5, (0,), otherwise=_deny(errno.EOPNOTSUPP))),
        # The kernel drops a signal to pid 1 of a namespace without a word. A program that tries to end what runs it
        # fails instead, as it does where that is an ordinary process.
        (_KILL_CALL, [*_allow_other_than(_ARG0, 1), *_allow_only(_ARG1, _SIGNALS_THAT_END_NOTHING)]),
        # With another signal at the parent's death than SIGKILL, pid 1 of a run could stay when its worker is gone.
        (_PRCTL, [*_allow_other_than(_ARG0, kernel.PR_SET_PDEATHSIG), *_allow_only(_ARG1, (_SIGKILL,))]),
    ]
    if namespaces:
        guarded.append((_SOCKET, _allow_only(_ARG0, (_AF_UNIX,))))
    else:
        denied, idle = denied | _DENIED_WITHOUT_NAMESPACES, idle | _IDLE_WITHOUT_NAMESPACES
        # A datagram pair can still send to any address, a stream pair only to its peer.
        load_type = [_instruction(_LOAD, _ARG1), _instruction(_AND, _SOCK_TYPE_MASK)]
        is_stream = _instruction(_JUMP_EQUAL, _SOCK_STREAM, if_true=1, if_false=0)
        guarded.append((_SOCKETPAIR, [*load_type, is_stream, _REFUSED, _ALLOWED]))
        # A process id of 0 means the caller.
        guarded += [(call, _allow_only(_ARG0, (0,))) for call in _OWN_PROCESS_ONLY.values()]
        for call, all_of_a_user in _PRIORITIES.values():
            guarded.append((call, [*_refuse_value(_ARG0, all_of_a_user), *_allow_only(_ARG1, (0,))]))
    guards = [(call[column], b"".join(tests)) for call, tests in guarded]
    for calls, answer in ((denied, _REFUSED), (idle, _deny(0))):
        guards += [(pair[column], answer) for pair in calls.values() if pair[column] >= 0]
    return _assemble(guards)


def deny(call_numbers: Sequence[int]) -> bytes:
    """A filter that refuses these system calls with EPERM and allows all others."""
    return _assemble([(number, _REFUSED) for number in call_numbers])


_Guard = tuple[int, bytes]  # a system call, and what runs for it alone; that ends in a return


def _assemble(guards: list[_Guard]) -> bytes:
    """The guards behind the check of the machine: a call of another calling convention ends the process."""
    if len(dict(guards)) < len(guards):
        raise ValueError("two guards of one system call, of which only one would run")
    machine = os.uname().machine
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NR),
    ]
    if machine == "x86_64":
        program += [_instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _instruction(_RETURN, _KILL)]
    return b"".join(program) + _search(sorted(guards))


def _search(guards: list[_Guard]) -> bytes:
    """The guards, in order of their numbers, as a binary search: the kernel runs a filter for every call there is when
    it is installed, once per run."""
    if len(guards) <= _LAST_GUARDS:
        tests = (_instruction(_JUMP_EQUAL, number, 0, len(body) // 8) + body for number, body in guards)
        return b"".join(tests) + _ALLOWED
    middle = len(guards) // 2
    low, high = _search(guards[:middle]), _search(guards[middle:])
    return _instruction(_JUMP_AT_LEAST, guards[middle][0], len(low) // 8, 0) + low + high


class Filter:
    """A program of `build_program` or `deny` in the form that the kernel takes."""

    def __init__(self, program: bytes) -> None:
        self._code = ctypes.create_string_buffer(program)
        header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header)
        self._pointer = ctypes.cast(self._header, ctypes.c_void_p)

    def install(self) -> None:
        """Put the filter on this process and all its descendants for good; no_new_privs must be set."""
        kernel.prctl(kernel.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._pointer)
