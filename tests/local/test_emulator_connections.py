"""Connections of the AWS emulator: which ones stay open, and that no byte of a body is taken for the next request."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from werkzeug.serving import make_server

from headrace.local.moto_patches import keep_connections_open

TIMEOUT_S = 30.0


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answers with what it has read of the body: as much as the path says, or all."""
    wanted = environ["PATH_INFO"].removeprefix("/")
    body = environ["wsgi.input"].read(int(wanted) if wanted.isdecimal() else -1)
    if wanted == "broken":
        raise RuntimeError("the application fails")
    headers = [] if wanted == "chunks" else [("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body]


@pytest.fixture
def port() -> Iterator[int]:
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=keep_connections_open())
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield server.server_address[1]
    server.shutdown()
    serving.join(TIMEOUT_S)
    server.server_close()


@pytest.fixture
def connection(port: int) -> Iterator[http.client.HTTPConnection]:
    opened = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    yield opened
    opened.close()


def exchange(connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    connection.request("POST", path, body)
    return connection.getresponse().read()


@pytest.mark.parametrize("path", ["/all", "/chunks"])
def test_a_connection_serves_request_after_request(connection: http.client.HTTPConnection, path: str):
    assert exchange(connection, path, b"first") == b"first"
    kept = connection.sock
    assert exchange(connection, path, b"second") == b"second"
    assert exchange(connection, path, b"") == b""
    assert connection.sock is kept
    assert kept is not None


def test_an_unread_body_is_not_the_next_request(connection: http.client.HTTPConnection):
    assert exchange(connection, "/4", b"readGET /all HTTP/1.1\r\n\r\n") == b"read"
    assert connection.sock is None, "the connection is closed"
    assert exchange(connection, "/all", b"next") == b"next"


def test_a_failed_application_does_not_stop_the_next_call(connection: http.client.HTTPConnection):
    connection.request("POST", "/broken", b"body")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == http.client.INTERNAL_SERVER_ERROR
    assert exchange(connection, "/all", b"next") == b"next"


def test_a_client_that_asks_for_it_is_closed(connection: http.client.HTTPConnection):
    connection.request("POST", "/all", b"last", {"Connection": "close"})
    assert connection.getresponse().read() == b"last"
    assert connection.sock is None


def test_requests_that_arrive_together_are_answered_in_order(port: int):
    request = b"POST /all HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as raw:
        raw.sendall(request + b"1" + request + b"2")
        found = b""
        while not found.endswith(b"\r\n\r\n2"):
            data = raw.recv(65_536)
            assert data, found
            found += data
    assert found.index(b"\r\n\r\n1") < found.index(b"\r\n\r\n2")


def test_a_body_that_breaks_off_ends_its_connection(port: int):
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as raw:
        raw.sendall(b"POST /all HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
        raw.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        assert answer.read() == b"half"
        assert raw.recv(1) == b""
