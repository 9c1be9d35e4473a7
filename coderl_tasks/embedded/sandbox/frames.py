"""Messages from the server to the sandbox's processes: for the worker the terms of a run, of fixed size, and for the
run itself its job, a JSON header and binary blobs, length first.

terms | u32 length of the header | header, UTF-8 JSON with "blobs": [length, ...] | the blobs, one after the other
"""

import json
import struct
from _socket import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

DONE = b"D"
"""What the server sends when it has read all that it wants of a run."""
_LENGTH = struct.Struct("!I")
_TERMS = struct.Struct("!dQQ?")
TERMS_BYTES = _TERMS.size


class Terms(NamedTuple):
    """What a worker knows of a run: its limits (wall clock in seconds, memory of a process in MiB, files in bytes), and
    whether the program is the prepared one."""

    timeout_s: float
    memory_mib: int
    disk_bytes: int
    prepared: bool

    @classmethod
    def unpack(cls, raw: bytes) -> "Terms":
        return cls(*_TERMS.unpack(raw))

    def pack(self) -> bytes:
        return _TERMS.pack(*self)


def pack(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """The message as bytes."""
    text = json.dumps(header | {"blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *blobs))


def receive(sock: socket) -> tuple[dict[str, Any], list[bytes]]:
    """Read one message from a blocking socket; EOFError when the peer is gone."""
    (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size))
    header = json.loads(_receive_exactly(sock, length))
    return header, [_receive_exactly(sock, length) for length in header.pop("blobs")]


def _receive_exactly(sock: socket, count: int) -> bytes:
    buffer = bytearray(count)
    view = memoryview(buffer)
    done = 0
    while done < count:
        got = sock.recv_into(view[done:])
        if got == 0:
            raise EOFError("the other end of the socket is closed")
        done += got
    return bytes(buffer)
