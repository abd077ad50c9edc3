"""The ports of loopback for clients outside pass on what a load balancer would: bytes, their end, and nothing more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headrace.local.external_ports import LOOPBACK, ExternalPorts

ANSWER = b"an answer to all of it"
PIECE = b"x" * 65_536


@contextmanager
def passed(serve: Callable[[socket.socket], None]) -> Iterator[tuple[ExternalPorts, socket.socket]]:
    """The ports, and a client that is connected to a store through the first of them; `serve` is the store."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def accept() -> None:
            connection, _ = listening.accept()
            with connection, suppress(ConnectionError):
                serve(connection)

        store = threading.Thread(target=accept)
        store.start()
        ports = ExternalPorts(1, lambda: [listening.getsockname()])
        ports.start()
        try:
            with socket.create_connection((LOOPBACK, ports.ports[0])) as client:
                yield ports, client
        finally:
            ports.stop()
            store.join()


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_an_answer_follows_the_end_of_a_request():
    def serve(connection: socket.socket) -> None:
        assert read_all(connection) == PIECE
        connection.sendall(ANSWER)

    with passed(serve) as (_, client):
        client.sendall(PIECE)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == ANSWER


def test_the_end_of_the_stack_ends_a_slow_client():
    filled = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.settimeout(1)  # when all buffers are full
        with suppress(TimeoutError):
            while True:
                connection.send(PIECE)
        filled.set()

    with passed(serve) as (ports, client):
        filled.wait()
        ports.stop()
        with suppress(ConnectionResetError):
            while client.recv(65_536):
                pass
