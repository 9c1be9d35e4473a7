"""A job: its message from the server to the sandbox's processes, and its files in its working directory: laid out
before the run, fetched after it, and trusted never.

Of the message the worker reads the terms, which are of fixed size, and the run itself the rest: its program, standard
input and files, as `marshal` packs them, which needs no module beside those that are there.
"""

import contextlib
import errno
import marshal
import os
import stat
import struct
from _socket import socket
from collections.abc import Sequence
from typing import NamedTuple

DONE = b"D"
"""What the server sends when it has read all that it wants of a run, where the worker is to remove what is left."""
_TERMS = struct.Struct("!dQQIQ")
TERMS_BYTES = _TERMS.size
_CHUNK = 1 << 18
_MAX_DEPTH = 100
_MACHINE_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class Terms(NamedTuple):
    """What a worker knows of a run: its limits (wall clock in seconds, memory of a process in MiB, files in bytes),
    the number of the prepared program that it runs (from 1; 0: its own code), and the bytes of the rest of the
    message (`message` counts them)."""

    timeout_s: float
    memory_mib: int
    disk_bytes: int
    prepared_number: int
    rest_bytes: int = 0

    @classmethod
    def unpack(cls, raw: bytes) -> "Terms":
        return cls(*_TERMS.unpack(raw))

    def message(self, code: bytes, stdin: bytes, files: dict[str, bytes]) -> bytes:
        """All of a job as bytes."""
        rest = marshal.dumps((code, stdin, files))
        return _TERMS.pack(*self._replace(rest_bytes=len(rest))) + rest


def receive(sock: socket, rest_bytes: int) -> tuple[bytes, bytes, dict[str, bytes]]:
    """Read the rest of a job, behind its terms, from a blocking socket: (code, standard input, files). EOFError when
    the peer is gone."""
    data, done = memoryview(bytearray(rest_bytes)), 0
    while done < rest_bytes:
        got = sock.recv_into(data[done:])
        if got == 0:
            raise EOFError("the other end of the socket is closed")
        done += got
    job: tuple[bytes, bytes, dict[str, bytes]] = marshal.loads(data)
    return job


def safe_parts(name: str, workdir: str) -> list[str]:
    """The path of `name` inside the working directory, part by part; ValueError if it leads outside or is empty."""
    inside = name.removeprefix(workdir + "/")
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if not parts or inside.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is not a path inside the working directory")
    return parts


def lay_out(workdir: str, files: dict[str, bytes], *, own_disk: bool) -> str | None:
    """Write a job's files below `workdir`; None, or why one of them cannot be where its name says. OSError where the
    machine is at fault. With `own_disk` it has a tmpfs of the run's own, which is large enough for the contents: then
    it is full of folders, and the names are at fault."""
    for name, content in files.items():
        try:
            parts = safe_parts(name, workdir)
            if len(parts) > _MAX_DEPTH:
                raise ValueError(f"it is more than {_MAX_DEPTH} folders deep")
            path = "/".join((workdir, *parts))
            if len(parts) > 1:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write_all(descriptor, content)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            reason = str(error)
            if isinstance(error, OSError):
                if error.errno in _MACHINE_FAULTS and not (own_disk and error.errno == errno.ENOSPC):
                    raise
                reason = os.strerror(error.errno or 0)
            return f"file {name[:200]!r} cannot be placed: {reason}"
    return None


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`, however little of it each call takes."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def read_files(root: int, workdir: str, names: Sequence[str], budget: int) -> dict[str, bytes]:
    """Those of these files below the open folder `root`, a run's `workdir`, that are regular, as many as are of at most
    `budget` bytes together. No symbolic link is followed on the way."""
    found: dict[str, bytes] = {}
    for name in names:
        try:
            parts = safe_parts(name, workdir)
            if len(parts) > _MAX_DEPTH:  # a descriptor for each folder: too many would look like the machine's fault
                continue
            try:
                content = _content(root, parts, budget)
            except PermissionError:
                # A server that is not root's is held by the rights that the program left.
                _open_up(root, parts)
                content = _content(root, parts, budget)
        except ValueError:
            continue
        except OSError as error:
            if error.errno in _MACHINE_FAULTS:  # else a file that is there would count as missing
                raise
            continue
        if content is not None:
            found[name] = content
            budget -= len(content)  # of all of them together: each alone may be as large as the disk allows
    return found


def _content(root: int, parts: Sequence[str], budget: int) -> bytes | None:
    # Part by part, no link followed: the program made these folders. Without O_NONBLOCK a named pipe blocks for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        folder = root
        for part in parts[:-1]:
            folder = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
            opened.callback(os.close, folder)
        descriptor = os.open(parts[-1], flags, dir_fd=folder)
        opened.callback(os.close, descriptor)
        # Of what was opened: asked by name, it could be another file by then.
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > budget:
            return None
        content = bytearray()
        while chunk := os.read(descriptor, _CHUNK):
            content += chunk
        return bytes(content)


def _open_up(root: int, parts: Sequence[str]) -> None:
    """Give this user the rights to a file of its own, and to the folders on the way to it."""
    os.fchmod(root, 0o700)
    with contextlib.ExitStack() as opened:
        folder = root
        for part in parts:
            # Opened without any right to it, and changed by descriptor: by name, a link's target would be.
            folder = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, folder)
            mode = os.fstat(folder).st_mode
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                return
            os.chmod(f"/proc/self/fd/{folder}", 0o700)


def give(workdir: str, uid: int) -> None:
    """Make `uid` the owner of the working directory and all in it."""
    os.chown(workdir, uid, uid)
    for folder, folders, files in os.walk(workdir):
        for name in (*folders, *files):
            os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)


def remove_tree(root: str) -> None:
    """Remove a folder of this user's with all in it, however deep it is and whatever rights its folders have. Nobody
    else may be at work in it. What is deep is moved up first: neither paths nor recursion get long."""
    os.chmod(root, 0o700)
    moved = 0
    while folders := [path for path in _entries(root) if not _unlink_file(path)]:
        for folder in folders:
            for path in _entries(folder):
                if not _unlink_file(path):
                    os.rename(path, os.path.join(root, f"{moved}-{os.urandom(8).hex()}"))
                    moved += 1
            os.rmdir(folder)
    os.rmdir(root)


def _entries(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder)]


def _unlink_file(path: str) -> bool:
    """Remove what is no folder; False for a folder, which is opened up."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.chmod(path, 0o700)
        return False
    os.unlink(path)
    return True
