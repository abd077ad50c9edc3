"""A segment store of a few lines: one thread per connection, answers by a function that a test gives."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace import wire

Answer = Callable[[wire.WireCommand], "wire.WireCommand | bytes | None"]


class ScriptedStore:
    """Answers each request with what `answer` returns: a reply, raw bytes, or None to drop the connection."""

    def __init__(self, answer: Answer, hello: wire.WireCommand | bytes | None = None) -> None:
        self.answer = answer
        self.hello = hello if hello is not None else wire.Hello(17, 5)
        self.requests: list[wire.WireCommand] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join()

    def drop_connections(self) -> None:
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        receiver = wire.FrameReceiver()
        with connection, contextlib.suppress(OSError):
            while received := connection.recv_into(receiver.writable()):
                for type_code, payload in receiver.received(received):
                    command = wire.decode(type_code, payload)
                    if isinstance(command, wire.Hello):
                        reply: wire.WireCommand | bytes | None = self.hello
                    else:
                        self.requests.append(command)
                        reply = self.answer(command)
                    if reply is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(reply if isinstance(reply, bytes) else wire.encode(reply))


@pytest.fixture
def scripted_store() -> Iterator[Callable[..., ScriptedStore]]:
    """Makes stores; all are closed after the test."""
    stores: list[ScriptedStore] = []

    def make(answer: Answer, **options: object) -> ScriptedStore:
        stores.append(ScriptedStore(answer, **options))  # type: ignore[arg-type]
        return stores[-1]

    yield make
    for store in stores:
        store.close()
