"""The socket of a session in memory, and what both ends of it have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace import wire
from headrace.segmentstore.connections.session import Session


def received_commands(receiver: wire.FrameReceiver, data: wire.Buffer) -> Iterator[wire.WireCommand]:
    """The commands that are complete with these bytes."""
    rest = memoryview(data)
    while len(rest):
        space = receiver.writable()
        count = min(len(space), len(rest))
        space[:count] = rest[:count]
        rest = rest[count:]
        for type_code, payload in receiver.received(count):
            yield wire.decode(type_code, payload)


class SessionChannel:
    """Gives a session the bytes that arrive, while it takes them. A subclass sends its replies.

    `call_soon` runs a callback in a later turn of the store's loop.
    """

    session: Session

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.closed = False
        self._call_soon = call_soon
        self._waiting = bytearray()
        self._paused = False

    def pause_receiving(self) -> None:
        self._paused = True

    def resume_receiving(self) -> None:
        self._paused = False
        self._call_soon(self._feed)

    def arrive(self, data: bytes) -> None:
        """Bytes from the other side."""
        self._waiting += data
        self._feed()

    def disconnect(self) -> None:
        """The other side has ended: nothing more arrives."""
        if not self.closed:
            self.closed = True
            self.session.disconnected()

    def _feed(self) -> None:
        while self._waiting and not self._paused and not self.closed:
            space = self.session.assembler.writable()
            count = min(len(space), len(self._waiting))
            space[:count] = self._waiting[:count]
            del self._waiting[:count]
            self.session.received(count)
