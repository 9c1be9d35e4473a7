"""Requests that are no HTTP, or stop being it in their body, for the tests of both servers."""

import socket
from urllib.parse import urlsplit

_HEAD = b"HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %s\r\nContent-Type: application/json\r\n"
_REQUESTS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9\r\n\r\n",
    b"GET %s " + _HEAD + b"Bad Header\x01: 1\r\n\r\n",
    b"GET %s " + _HEAD + b"Name: a\r\x00\nb\r\n\r\n",
    b"GET %s " + _HEAD + b"Long: " + b"x" * 100_000 + b"\r\n\r\n",
    b"POST %s " + _HEAD + b"Content-Length: -1\r\n\r\n",
    b"POST %s " + _HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST %s " + _HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    b"POST %s " + _HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
    b"POST %s " + _HEAD + b"Content-Encoding: deflate\r\nContent-Length: 5\r\n\r\nabcde",
)


def answers_to_malformed_requests(url: str, path: str, key: str) -> list[int]:
    """The HTTP status of each answer of the server at `url`; POSTs are for `path`."""
    address = urlsplit(url)
    assert address.port is not None
    found = []
    for request in _REQUESTS:
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            filled = request.replace(b"%s", path.encode(), 1).replace(b"%s", key.encode(), 1)
            connection.sendall(filled)
            found.append(int(connection.recv(65536).split()[1]))
    return found
