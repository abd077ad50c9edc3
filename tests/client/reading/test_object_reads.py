"""Ranges of objects over HTTP: exact or refused, on connections that are kept as long as they serve."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from object_server import FAILURES, ObjectServer, serving_object

from headrace.client.reading import object_reads
from headrace.client.reading.object_reads import WINDOW_BYTES, ObjectReadError, ObjectReads

DATA = bytes(range(256)) * 10_000


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving_object(DATA) as found:
        yield found


@pytest.fixture
def objects() -> Iterator[ObjectReads]:
    reads = ObjectReads(timeout_s=20)
    yield reads
    reads.close()


def read(objects: ObjectReads, server: ObjectServer, start: int, stop: int) -> bytes:
    return b"".join(objects.read(server.url, {"Range": f"bytes={start}-{stop - 1}"}, stop - start))


def test_windows_are_the_range_and_do_not_share_memory(objects: ObjectReads, server: ObjectServer) -> None:
    windows = list(objects.read(server.url, {"Range": f"bytes=3-{2 * WINDOW_BYTES + 12}"}, 2 * WINDOW_BYTES + 10))
    assert [len(window) for window in windows] == [WINDOW_BYTES, WINDOW_BYTES, 10]
    assert b"".join(windows) == DATA[3 : 2 * WINDOW_BYTES + 13]


def test_a_connection_serves_many_ranges(objects: ObjectReads, server: ObjectServer) -> None:
    for start in range(0, 5000, 1000):
        assert read(objects, server, start, start + 1000) == DATA[start : start + 1000]
    assert server.connections == 1


def test_a_connection_that_was_closed_while_idle_is_no_failure(objects: ObjectReads, server: ObjectServer) -> None:
    server.keeps_connections = False
    for start in range(0, 3000, 1000):
        assert read(objects, server, start, start + 1000) == DATA[start : start + 1000]
    assert server.connections == 3


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_hands_out_no_wrong_byte(objects: ObjectReads, server: ObjectServer, failure: str) -> None:
    assert read(objects, server, 0, 10) == DATA[:10]
    server.fail([failure, failure])
    with pytest.raises(ObjectReadError):
        read(objects, server, 100, 200)
    server.fail()
    assert read(objects, server, 100, 200) == DATA[100:200]


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://127.0.0.1:99999/x",
        "http://127.0.0.1:x/",
        f"http://{'a' * 70}/",
        "http://127.0.0.1:1/\u2603",
    ],
)
def test_what_is_no_link_is_a_failed_read(objects: ObjectReads, url: str) -> None:
    with pytest.raises(ObjectReadError):
        next(objects.read(url, {}, 10))


@pytest.mark.parametrize("headers", [{"Range": "bytes=0-9\r\nX: y"}, {"Range": "\u2603"}, {"Host\n": "x"}])
def test_headers_that_cannot_be_sent_are_a_failed_read(
    objects: ObjectReads, server: ObjectServer, headers: dict[str, str]
) -> None:
    assert read(objects, server, 0, 10) == DATA[:10]
    for _ in range(2):
        with pytest.raises(ObjectReadError):
            next(objects.read(server.url, headers, 10))
    assert len(server.requests) == 1


def test_a_range_that_is_left_early_is_not_read_by_the_next(objects: ObjectReads, server: ObjectServer) -> None:
    windows = objects.read(server.url, {"Range": f"bytes=0-{len(DATA) - 1}"}, len(DATA))
    next(windows)
    windows.close()
    assert read(objects, server, 7, 77) == DATA[7:77]


def test_threads_have_connections_of_their_own(objects: ObjectReads, server: ObjectServer) -> None:
    server.barrier = threading.Barrier(3)
    parts: dict[int, bytes] = {}

    def run(start: int) -> None:
        parts[start] = read(objects, server, start, start + 500)

    threads = [threading.Thread(target=run, args=(start,)) for start in (0, 500, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parts == {start: DATA[start : start + 500] for start in (0, 500, 1000)}
    assert server.connections == 3


def test_a_silent_server_is_waited_for_once(server: ObjectServer) -> None:
    """Not once for each kept connection: eight of them would take four minutes."""
    with closing(ObjectReads()) as objects:
        server.barrier = threading.Barrier(3)
        threads = [threading.Thread(target=read, args=(objects, server, 0, 10)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.barrier = threading.Barrier(100)
        (kept,) = objects._idle.values()
        assert len(kept) == 3
        for connection in kept:
            connection.sock.settimeout(0.1)
        with pytest.raises(ObjectReadError, match="TimeoutError"):
            read(objects, server, 0, 10)
        assert len(kept) == 2, "those that were not waited for"
        assert server.connections == 3
        server.barrier.abort()


def test_no_server_is_said(objects: ObjectReads) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/object"
        with pytest.raises(ObjectReadError, match="ConnectionRefusedError"):
            list(objects.read(url, {}, 1))


def test_https_goes_through_the_proxy(monkeypatch: pytest.MonkeyPatch, objects: ObjectReads) -> None:
    """The proxy is asked for a tunnel with its credentials; here it refuses."""
    asked: list[bytes] = []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def refuse() -> None:
            connection, _ = listening.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:se%20cret@127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "inside.example")
        with pytest.raises(ObjectReadError, match="407"):
            list(objects.read("https://bucket.example/key", {}, 1))
        thread.join()
    assert asked[0].startswith(b"CONNECT bucket.example:443 ")
    assert b"Proxy-Authorization: Basic bWU6c2UgY3JldA==" in asked[0]
    assert object_reads._proxy("inside.example") is None


def test_an_abort_ends_reads_and_their_connections(objects: ObjectReads, server: ObjectServer) -> None:
    """Also on a connection that was kept: the request is not repeated on another one."""
    assert read(objects, server, 0, 10) == DATA[:10]
    server.fail(["trickle"])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, objects, server, 0, 100_000)
        while not server.requests:
            time.sleep(0.001)
        objects.abort()
        with pytest.raises(ObjectReadError):
            reading.result()
    assert (len(server.requests), server.connections) == (1, 1)
    assert read(objects, server, 5, 15) == DATA[5:15]
    assert server.connections == 2
    assert not objects._busy


def test_a_read_that_was_aborted_keeps_no_connection(objects: ObjectReads, server: ObjectServer) -> None:
    windows = objects.read(server.url, {"Range": "bytes=0-9"}, 10)
    assert next(windows) == DATA[:10]
    objects.abort()
    assert list(windows) == []
    assert not any(objects._idle.values())


def test_nothing_is_read_after_the_end(server: ObjectServer) -> None:
    """A thread may begin a read when its pool is closed already."""
    objects = ObjectReads()
    assert read(objects, server, 0, 10) == DATA[:10]
    objects.close()
    with pytest.raises(ObjectReadError):
        read(objects, server, 0, 10)
    assert len(server.requests) == 1
