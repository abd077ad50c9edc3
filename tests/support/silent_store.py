"""A segment store that accepts connections, says Hello, and answers nothing more."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from headrace import wire
from headrace.wire.framing import FrameReceiver

HOST = "127.0.0.1"


class SilentStore:
    """It says Hello, and nothing more. The kernel takes what clients send. Its segments can move to the other store.

    If it `sets_up`, it also answers the first command of each connection, which sets up a writer.
    """

    def __init__(self, other_port: int = 0) -> None:
        self.other_port = other_port
        self.sets_up = False
        self.accepted: list[socket.socket] = []
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                peer, _ = self._server.accept()
                self.accepted.append(peer)
                peer.sendall(wire.encode(wire.OWN_HELLO))
                if self.sets_up:
                    peer.sendall(wire.encode(_set_up(peer)))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._server, *self.accepted):
            each.close()


def _set_up(peer: socket.socket) -> wire.AppendSetup:
    receiver = FrameReceiver()
    while count := peer.recv_into(receiver.writable()):
        for type_code, payload in receiver.received(count):
            asked = wire.decode(type_code, payload)
            if isinstance(asked, wire.SetupAppend):
                return wire.AppendSetup(asked.request_id, asked.segment, asked.writer_id, wire.NO_EVENT_NUMBER)
    raise EOFError("the client has gone")
