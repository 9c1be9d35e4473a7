"""Messages from the server to the sandbox's processes: for the worker the terms of a run, of fixed size, and for the
run itself its job, as blobs.

terms | length of each blob, u64 | the blobs, one after the other: the names of its files, a NUL between each two; the
code; standard input; the contents of the files
"""

import struct
from _socket import socket
from collections.abc import Sequence
from typing import NamedTuple

DONE = b"D"
"""What the server sends when it has read all that it wants of a run, where the worker is to remove what is left."""
_TERMS = struct.Struct("!dQQII")
TERMS_BYTES = _TERMS.size


class Terms(NamedTuple):
    """What a worker knows of a run: its limits (wall clock in seconds, memory of a process in MiB, files in bytes),
    which prepared program it runs (0: its own code), and how many blobs follow (`message` counts them)."""

    timeout_s: float
    memory_mib: int
    disk_bytes: int
    prepared: int
    n_blobs: int = 0

    @classmethod
    def unpack(cls, raw: bytes) -> "Terms":
        return cls(*_TERMS.unpack(raw))

    def message(self, names: Sequence[str], code: bytes, stdin: bytes, contents: Sequence[bytes]) -> bytes:
        """All of a job as bytes."""
        blobs = ["\0".join(names).encode("utf-8", "surrogatepass"), code, stdin, *contents]
        lengths = struct.pack(f"!{len(blobs)}Q", *map(len, blobs))
        return b"".join((_TERMS.pack(*self._replace(n_blobs=len(blobs))), lengths, *blobs))


def receive(sock: socket, n_blobs: int) -> tuple[list[str], list[memoryview]]:
    """Read a job, behind its terms, from a blocking socket: (names, code and the other blobs). EOFError when the peer
    is gone."""
    lengths = struct.unpack(f"!{n_blobs}Q", _receive_exactly(sock, 8 * n_blobs))
    data, blobs, start = _receive_exactly(sock, sum(lengths)), [], 0
    for length in lengths:
        blobs.append(data[start : start + length])
        start += length
    names = bytes(blobs[0]).decode("utf-8", "surrogatepass")
    return names.split("\0") if names else [], blobs[1:]


def _receive_exactly(sock: socket, count: int) -> memoryview:
    view, done = memoryview(bytearray(count)), 0
    while done < count:
        got = sock.recv_into(view[done:])
        if got == 0:
            raise EOFError("the other end of the socket is closed")
        done += got
    return view
