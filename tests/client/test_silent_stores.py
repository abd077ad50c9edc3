"""A store that hangs, or whose host is gone without a word. Its segments move to another store meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from scripted_cluster import HOLD_S, Cluster

from headrace import wire
from headrace.api.segments import SegmentEndpoint
from headrace.client.segment_connections import SegmentConnections
from headrace.wire import client_end
from headrace.wire.connections import asynchronous

HOST = "127.0.0.1"
WAIT_S = 20.0
"""Less than the time-out of a request, which would give the store up, too."""

SEARCHES = 3


class SilentStore:
    """It says Hello, and nothing more. The kernel takes what clients send. Its segments can move to the other store."""

    def __init__(self, other_port: int) -> None:
        self.other_port = other_port
        self.accepted: list[socket.socket] = []
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                self.accepted.append(peer)
                peer.sendall(wire.encode(wire.OWN_HELLO))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._server, *self.accepted):
            each.close()


@pytest.fixture
def silent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentStore]:
    """The store of all segments, at first. Nothing but the search for another owner ends a connection to it."""
    monkeypatch.setattr(asynchronous, "KEEP_ALIVE_PERIOD_S", HOLD_S / 5)
    monkeypatch.setattr(client_end, "SILENT_PERIODS_MAX", 1_000_000)
    store = SilentStore(cluster.port)
    cluster.port = store.port
    yield store
    store.close()


def _until_searched(cluster: Cluster) -> None:
    """Return when the client has asked several times which store has a segment."""
    deadline_s = time.monotonic() + WAIT_S
    while sum(path.endswith("/endpoint") for _, path in cluster.requests) <= SEARCHES:
        assert time.monotonic() < deadline_s
        time.sleep(HOLD_S / 10)


def test_writer_leaves_a_silent_store_that_has_lost_its_segment(cluster: Cluster, silent: SilentStore) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        ack = writer.write(b"event", "key")
        _until_searched(cluster)
        assert len(silent.accepted) == 1, "the store has the segment still, so it may only be slow"
        cluster.port = silent.other_port
        ack.result(timeout_s=WAIT_S)
    assert cluster.all_events() == [b"event"]


def test_reader_leaves_a_silent_store_that_has_lost_its_segment(cluster: Cluster, silent: SilentStore) -> None:
    cluster.put(0, b"event")
    with cluster.client() as headrace, headrace.reader("s", "t", start="head") as reader:
        found: list[bytes] = []
        reading = threading.Thread(target=lambda: found.append(next(iter(reader)).event))
        reading.start()
        _until_searched(cluster)
        assert len(silent.accepted) == 1
        cluster.port = silent.other_port
        reading.join(WAIT_S)
        assert found == [b"event"]


class _HungSource:
    """It finds the owner of a segment once; later searches hang until they are cancelled."""

    delegation_tokens = None

    def __init__(self, port: int) -> None:
        self._answers = [SegmentEndpoint(HOST, port, "local", 0, 0)]
        self.searches = asyncio.Event()
        self.is_cancelled = False

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        if self._answers:
            return self._answers.pop()
        self.searches.set()
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


@pytest.mark.anyio
async def test_closing_ends_a_search_for_the_owner(silent: SilentStore) -> None:
    source = _HungSource(silent.port)
    connections = SegmentConnections(source, "s", "t")  # type: ignore[arg-type]
    await connections.to_segment(0)
    await asyncio.wait_for(source.searches.wait(), WAIT_S)
    await connections.close()
    assert source.is_cancelled
