"""The blocking connection: its deadline counts for a whole request, however slowly the store takes it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace import wire
from headrace.model.errors import UnavailableError
from headrace.wire.connections.blocking import BlockingConnection

DEADLINE_S = 1_000.0
LARGE = wire.ConditionalAppend(1, 1, 0, bytes(8 << 20), 1)


class CountingClock:
    """Each look at it takes as long as it is told."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.step_s = 0.0

    def monotonic_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@contextmanager
def slow_store(clock: CountingClock) -> Iterator[BlockingConnection]:
    """A connection to a peer that says Hello, and then takes all bytes, a little at a time."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                for part in wire.encode_joined(wire.OWN_HELLO, 1024):
                    peer.sendall(part)
                while not ended.is_set() and peer.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with BlockingConnection(*server.getsockname(), monotonic_s=clock.monotonic_s) as connection:
                yield connection
        finally:
            ended.set()
            thread.join()


def test_a_store_that_takes_a_request_slowly_is_given_up() -> None:
    """Each piece that it takes is in time, and all of them together are not."""
    clock = CountingClock()
    with slow_store(clock) as connection:
        clock.step_s = DEADLINE_S / 4
        with pytest.raises(UnavailableError, match="the time allowed is over"):
            connection.send(LARGE, clock.now_s + DEADLINE_S)
        assert connection.is_closed


def test_a_large_request_is_sent_whole_in_time() -> None:
    clock = CountingClock()
    with slow_store(clock) as connection:
        connection.send(LARGE, DEADLINE_S)
        assert not connection.is_closed
