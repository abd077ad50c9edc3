"""Raw connections of the wire protocol, over a socket or to a session in this process; the store may die under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace import wire
from headrace.segmentstore.connections.receive_memory import ReceiveMemory
from headrace.segmentstore.connections.session import Session
from headrace.segmentstore.store import SegmentStore
from simulation.world.channels import SessionChannel, received_commands

WAIT_S = 60.0
"""Far beyond what any answer takes: it only turns a hang into a failure."""


class Connection(Protocol):
    """Answers come in the order of the requests for as long as one request at a time is under way."""

    def send(self, command: wire.WireCommand) -> None: ...

    async def receive(self) -> wire.WireCommand:
        """Raises ConnectionError: the store is gone."""
        ...

    async def call(self, command: wire.WireCommand) -> wire.WireCommand: ...

    def close(self) -> None: ...


class SocketConnection:
    """To a store on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> SocketConnection:
        connection = cls(*await asyncio.open_connection(host, port))
        hello = await connection.call(wire.Hello(wire.WIRE_VERSION, wire.OLDEST_COMPATIBLE_VERSION))
        if not isinstance(hello, wire.Hello):
            raise AssertionError(hello)
        return connection

    def send(self, command: wire.WireCommand) -> None:
        self._writer.write(wire.encode(command))

    async def receive(self) -> wire.WireCommand:
        try:
            # Not `wait_for`: up to Python 3.11 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(WAIT_S):
                header = await self._reader.readexactly(wire.FRAME_HEADER.size)
                type_code, length = wire.decode_header(header)
                payload = await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the store has closed the connection") from error
        return _unless_gone(wire.decode(type_code, memoryview(payload)))

    async def call(self, command: wire.WireCommand) -> wire.WireCommand:
        self.send(command)
        return await self.receive()

    def close(self) -> None:
        self._writer.close()

    def break_off(self) -> None:
        """At once, even if the store takes nothing: what waits for a reply gets ConnectionError."""
        self._writer.transport.abort()


class MemoryConnection:
    """To a session in this process; takes every reply at once, unless its channel does not."""

    def __init__(
        self,
        store: SegmentStore,
        random_uuid: Callable[[], int],
        channel: MemoryChannel | None = None,
    ) -> None:
        self._channel = channel or MemoryChannel()
        memory = ReceiveMemory(32 << 20, 100)
        self.session = self._channel.session = Session(store, self._channel, memory, "memory", random_uuid)

    @property
    def closed(self) -> bool:
        """Whether the session has ended it."""
        return self._channel.closed

    def send(self, command: wire.WireCommand) -> None:
        self.send_bytes(wire.encode(command))

    def send_bytes(self, data: bytes) -> None:
        """Any bytes."""
        self._channel.arrive(data)

    async def receive(self) -> wire.WireCommand:
        async with asyncio.timeout(WAIT_S):
            reply = await self._channel.replies.get()
        if reply is None:
            raise ConnectionError("the session is closed")
        return _unless_gone(reply)

    async def call(self, command: wire.WireCommand) -> wire.WireCommand:
        self.send(command)
        return await self.receive()

    def close(self) -> None:
        self._channel.disconnect()

    def break_off(self) -> None:
        """As if the other side had died: nothing more arrives, here or there."""
        self._channel.close()


class MemoryChannel(SessionChannel):
    """The socket of a session in this process, whose peer takes each reply at once."""

    def __init__(self) -> None:
        super().__init__(lambda callback: asyncio.get_running_loop().call_soon(callback))
        self.replies: asyncio.Queue[wire.WireCommand | None] = asyncio.Queue()
        self._receiver = wire.FrameReceiver()

    def send(self, parts: Sequence[wire.Buffer]) -> None:
        for part in parts:
            for reply in received_commands(self._receiver, part):
                self.replies.put_nowait(reply)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.replies.put_nowait(None)
            asyncio.get_running_loop().call_soon(self.session.disconnected)

    abort = close


def _unless_gone(reply: wire.WireCommand) -> wire.WireCommand:
    """A container that has stopped is as good as a store that is dead."""
    if isinstance(reply, wire.WrongHost):
        raise ConnectionError(f"the container of {reply.segment} does not answer any more")
    return reply
