"""Messages between the server and the sandbox's processes: a JSON header and binary blobs, length first.

u32 length of the header | header, UTF-8 JSON with "blobs": [length, ...] | the blobs, one after the other
"""

import json
import struct
from _socket import socket
from collections.abc import Sequence
from typing import Any

JOB, KEEP = b"J", b"K"
"""The byte before a message to a worker: a job, or code to keep compiled for the jobs that follow."""
_LENGTH = struct.Struct("!I")
LENGTH_BYTES = _LENGTH.size
_MAX_HEADER = 16 << 20


def pack(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """The message as bytes."""
    text = json.dumps(header | {"blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *blobs))


def header_length(raw: bytes) -> int:
    """The length of the header after the first `LENGTH_BYTES` of a message; ValueError if it cannot be true."""
    length = int(_LENGTH.unpack(raw)[0])
    if length > _MAX_HEADER:
        raise ValueError(f"a header of {length} bytes")
    return length


def receive(sock: socket) -> tuple[dict[str, Any], list[bytes]]:
    """Read one message from a blocking socket; EOFError when the peer is gone."""
    header = json.loads(_receive_exactly(sock, header_length(_receive_exactly(sock, LENGTH_BYTES))))
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
