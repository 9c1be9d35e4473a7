"""Clients that do not end what they begin."""

import socket
import time
from urllib.parse import urlsplit

import pytest

from tests.local_servers.malformed_requests import answers_to_malformed_requests
from tests.local_servers.tinker_wire.conftest import API_KEY, Server

POST = (
    b"POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nX-API-Key: tml-x\r\nContent-Type: application/json\r\n"
)


def begun(server: Server, request: bytes) -> socket.socket:
    address = urlsplit(server.url)
    assert address.port is not None
    connection = socket.create_connection((address.hostname, address.port))
    connection.sendall(request)
    return connection


def test_a_client_that_hangs_up_in_its_request_is_no_failure_of_the_server(
    impatient_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        begun(impatient_server, POST + b"Content-Length: 100000\r\n\r\n{").close()
    time.sleep(0.5)
    assert impatient_server.call("/api/v1/healthz")[0] == 200
    assert [record.message for record in caplog.records] == []


def test_200_slow_requests_keep_nobody_waiting(server: Server) -> None:
    slow = [begun(server, POST + b"Content-Length: 100000\r\n\r\n{") for _ in range(100)]
    slow += [begun(server, POST[:40]) for _ in range(100)]
    begin = time.monotonic()
    for _ in range(5):
        assert server.call("/api/v1/healthz")[0] == 200
        for connection in slow:
            connection.sendall(b"x")
    assert time.monotonic() - begin < 10
    for connection in slow:
        connection.close()


def test_malformed_requests_are_refused_and_not_logged(
    impatient_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert set(answers_to_malformed_requests(impatient_server.url, "/api/v1/create_session", API_KEY)) == {400}
    assert impatient_server.call("/api/v1/healthz")[0] == 200
    assert [record.message for record in caplog.records] == []
