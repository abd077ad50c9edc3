"""Connections of clients to simulated stores: delays in both directions, resets, and the death of the store.

A client's connection finds the store of each segment. Replies come in the order of the requests as long as the client
waits for each, which is what `fuzz.connections.Connection` promises.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from headrace import wire
from headrace.model.names import is_transient_segment_name, is_transient_segment_of
from headrace.segmentstore.connections.receive_memory import ReceiveMemory
from headrace.segmentstore.connections.session import Session
from headrace.segmentstore.store import SegmentStore
from simulation.store_level.tier_two import NOT_ANSWERED
from simulation.world.channels import SessionChannel, received_commands
from simulation.world.loop import SimulatedLoop, SimulatedProcess

_RESET_DELAY: Final = 20_000


class StoreConnection:
    """One connection to one store. `deliver` gets each reply, and None when the connection has ended."""

    def __init__(
        self,
        loop: SimulatedLoop,
        client: SimulatedProcess,
        server: SimulatedProcess,
        delay: int,
        deliver: Callable[[wire.WireCommand | None], None],
    ) -> None:
        self._loop = loop
        self._client = client
        self._server = server
        self._delay = delay
        self._deliver = deliver
        self._channel: _Channel | None = None
        self._is_open = True
        self._received = wire.FrameReceiver()
        self._next_arrival = {"there": 0, "back": 0}
        self._under_way: dict[str, deque[Callable[[], None]]] = {"there": deque(), "back": deque()}

    def accept(self, store: SegmentStore, memory: ReceiveMemory, random_uuid: Callable[[], int]) -> None:
        """Begin the session, in the process of the store."""
        self._channel = _Channel(self, self._server)
        self._channel.session = Session(store, self._channel, memory, self._client.name, random_uuid)

    def send(self, data: bytes) -> None:
        """Send bytes to the store."""
        self._travel("there", self._server, lambda: self._arrive_there(data))

    def send_back(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._travel("back", self._client, lambda: self._arrive_back(data))

    def close(self) -> None:
        """The client closes: the store learns of it later."""
        if self._is_open:
            self._travel("there", self._server, self._end_there)
            self._is_open = False

    def close_back(self) -> None:
        """The store closes: the client learns of it later, after what was sent before."""
        self._travel("back", self._client, self._end_back)

    def reset(self) -> None:
        """Drop what is on its way; both ends learn of it."""
        if self._is_open:
            self._is_open = False
            self._server.after(_RESET_DELAY, "reset", lambda: self._server.call_soon(self._end_there))
            self._client.after(_RESET_DELAY, "reset", lambda: self._client.call_soon(lambda: self._deliver(None)))

    def _travel(self, way: str, to: SimulatedProcess, arrive: Callable[[], None]) -> None:
        if not self._is_open:
            return
        now, draws = self._loop.scheduler.now, self._loop.draws
        due = max(self._next_arrival[way], now + draws.between(self._delay // 2, self._delay * 2, "network delay"))
        self._next_arrival[way] = due + 1
        under_way = self._under_way[way]
        under_way.append(arrive)
        # The first one that is under way arrives: pauses may put its event off for longer than that of a later one.
        to.after(due - now, "message", lambda: to.call_soon(under_way.popleft()))

    def _arrive_there(self, data: bytes) -> None:
        if self._is_open and self._channel is not None:
            self._channel.arrive(data)

    def _end_there(self) -> None:
        if self._channel is not None:
            self._channel.disconnect()

    def _end_back(self) -> None:
        if self._is_open:
            self._is_open = False
            self._deliver(None)

    def _arrive_back(self, data: bytes) -> None:
        if not self._is_open:
            return
        for reply in received_commands(self._received, data):
            self._deliver(reply)


class _Channel(SessionChannel):
    """The socket of a session, in the process of the store."""

    def __init__(self, connection: StoreConnection, process: SimulatedProcess) -> None:
        super().__init__(process.call_soon)
        self._connection = connection

    def send(self, parts: Sequence[wire.Buffer]) -> None:
        self._connection.send_back(b"".join(parts))

    def close(self) -> None:
        if not self.closed:
            self._connection.close_back()
            self._call_soon(self.disconnect)

    abort = close


class StoreDirectory(Protocol):
    """Finds the stores that serve segments, and connects to them."""

    def find(self, segment: str) -> SimulatedProcess | None:
        """The store that serves a segment, as far as a client knows; None without one."""
        ...

    def claimed_epoch(self, segment: str) -> int | None:
        """The epoch of the owner of a segment; None before the first one."""
        ...

    def dial(
        self, server: SimulatedProcess, client: SimulatedProcess, deliver: Callable[[wire.WireCommand | None], None]
    ) -> StoreConnection: ...


class RoutedConnection:
    """`fuzz.connections.Connection` of a client to all stores of a cluster."""

    def __init__(self, stores: StoreDirectory, client: SimulatedProcess) -> None:
        self._stores = stores
        self._client = client
        self._replies: asyncio.Queue[wire.WireCommand | None] = asyncio.Queue()
        # By segment, with the epoch of its owner then: a client stays with what it has found.
        self._found: dict[str, tuple[SimulatedProcess, int | None]] = {}
        self._open: dict[SimulatedProcess, StoreConnection] = {}
        self._segments: dict[int, str] = {}
        self._is_closed = False

    def send(self, command: wire.WireCommand) -> None:
        segment = self._home_of(self._segment_of(command))
        if segment not in self._found:
            found = self._stores.find(segment)
            if found is None:
                raise ConnectionError(f"no store serves {segment}")
            self._found[segment] = found, self._stores.claimed_epoch(segment)
        server, _ = self._found[segment]
        if server not in self._open:
            self._open[server] = self._stores.dial(server, self._client, self._deliver)
        self._open[server].send(wire.encode(command))

    async def receive(self) -> wire.WireCommand:
        """Raises ConnectionError: the store, the connection or the container is gone."""
        reply = await self._replies.get()
        if reply is None:
            raise ConnectionError("the connection was closed")
        if isinstance(reply, wire.WrongHost):
            raise ConnectionError(f"the container of {reply.segment} is not served there")
        if isinstance(reply, wire.ErrorMessage) and NOT_ANSWERED in reply.message:
            raise ConnectionError(f"the store has no answer from tier 2 for {reply.segment}")
        if isinstance(reply, wire.ErrorMessage) and self._has_moved(reply.segment):
            raise ConnectionError(f"a former owner has no answer for {reply.segment}, because the new one changed it")
        return reply

    async def call(self, command: wire.WireCommand) -> wire.WireCommand:
        self.send(command)
        return await self.receive()

    def close(self) -> None:
        self._is_closed = True
        for connection in self._open.values():
            connection.close()

    def _deliver(self, reply: wire.WireCommand | None) -> None:
        if not self._is_closed:
            self._replies.put_nowait(reply)

    def _has_moved(self, segment: str) -> bool:
        """Whether a segment has got another owner since this connection has found one."""
        home = self._home_of(segment)
        return home in self._found and self._stores.claimed_epoch(home) != self._found[home][1]

    def _home_of(self, segment: str) -> str:
        """A transient segment is where this connection has created it, and ends with the connection."""
        if not is_transient_segment_name(segment):
            return segment
        return next((known for known in self._found if is_transient_segment_of(segment, known)), segment)

    def _segment_of(self, command: Any) -> str:
        for field in ("segment", "target", "parent_segment"):
            segment: str | None = getattr(command, field, None)
            if segment is not None:
                if isinstance(command, wire.SetupAppend):
                    self._segments[command.writer_id] = segment
                return segment
        return self._segments[command.writer_id]
