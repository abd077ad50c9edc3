"""Connections of clients to stores in one event loop: delays, pieces, resets, silent stores, and peers that are gone.

Each direction keeps its order. What a client sent before it closed a connection may still arrive, as with TCP.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from fuzz.randomness import Random
from headrace import wire
from simulation.world.channels import received_commands

HOST: Final = "store.local"
FIRST_PORT: Final = 7000
_NEVER_S: Final = 3_600.0


@dataclass(slots=True)
class NetworkFaults:
    """How often something goes wrong. Nothing does while `is_calm` is set, except what has begun before."""

    delay_s: float = 0.0
    reset_share: float = 0.0
    lost_share: float = 0.0
    piece_bytes: int = 1 << 20
    is_calm: bool = False


@dataclass(slots=True)
class StoreState:
    """Whether a store runs. A paused one neither receives nor sends, and does so later."""

    number: int
    is_paused: bool = False
    is_down: bool = False
    connections: dict[MemoryTransport, None] = field(default_factory=dict)


class StoreSession(Protocol):
    """The store's end of a connection."""

    def received(self, command: wire.WireCommand) -> None: ...
    def disconnected(self) -> None: ...


Accept = Callable[["MemoryTransport"], StoreSession]


class ClientNetwork:
    """All connections. `connect` takes the place of `create_connection` of the event loop."""

    def __init__(self, random: Random, faults: NetworkFaults, stores: list[StoreState], accept: Accept) -> None:
        self.happened: Counter[str] = Counter()
        self.random = random
        self.faults = faults
        self._stores = stores
        self._accept = accept

    async def connect(
        self, new_protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int
    ) -> tuple[MemoryTransport, asyncio.BufferedProtocol]:
        """Raises OSError: no store listens there."""
        assert host == HOST, "the controller gave this address out"
        store = self._stores[port - FIRST_PORT]
        await asyncio.sleep(self.random.random() * self.faults.delay_s)
        if not self.faults.is_calm and self.random.random() < self.faults.reset_share / 4:
            self.happened["unanswered connects"] += 1
            await asyncio.sleep(_NEVER_S)
        if store.is_down:
            raise ConnectionRefusedError(f"store {store.number} is down")
        self.happened["connections"] += 1
        protocol = new_protocol()
        transport = MemoryTransport(self, store, protocol)
        transport.session = self._accept(transport)
        store.connections[transport] = None
        protocol.connection_made(transport)
        return transport, protocol

    @property
    def open(self) -> list[MemoryTransport]:
        """The connections that no client has closed."""
        return [connection for store in self._stores for connection in store.connections if not connection.is_closing()]

    def pause(self, store: StoreState) -> None:
        self.happened["silent stores"] += 1
        store.is_paused = True

    def resume(self, store: StoreState) -> None:
        store.is_paused = False
        for connection in list(store.connections):
            connection.catch_up()

    def kill(self, store: StoreState) -> None:
        """End all connections of a store. It refuses new ones until `is_down` is unset."""
        self.happened["killed stores"] += 1
        store.is_down = True
        for connection in list(store.connections):
            connection.reset(drops_requests=True)


class MemoryTransport(asyncio.Transport):
    """One connection, from the client's transport to the store's session."""

    session: StoreSession

    def __init__(self, network: ClientNetwork, store: StoreState, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.store = store
        self._network = network
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._frames = wire.FrameReceiver()
        self._there: deque[Callable[[], None]] = deque()
        self._back: deque[Callable[[], None]] = deque()
        self._due_there = self._due_back = 0.0
        self._held: deque[Callable[[], None]] = deque()
        """What a paused store does later."""
        self._piece_bytes = network.faults.piece_bytes
        self._is_closed = False
        self._drops_requests = False
        self._is_dead = False
        self._has_ended = False

    # asyncio.Transport, for the client

    def write(self, data: Any) -> None:
        if not self._is_closed:
            self._travel_there(partial(self._arrive_there, bytes(data)))

    def abort(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.call_soon(self._protocol.connection_lost, None)
        if self._network.random.random() < 0.5:
            self._drops_requests = True
        self._travel_there(self._end_there)

    close = abort

    def is_closing(self) -> bool:
        return self._is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # The store's end

    def send(self, command: wire.WireCommand) -> None:
        """Send a reply. A paused store sends it later."""
        if self.store.is_paused:
            self._held.append(partial(self.send, command))
        else:
            self._travel_back(partial(self._arrive_back, wire.encode(command)))

    def end(self) -> None:
        """The store closes the connection after what it has sent."""
        self._travel_back(self._close_client)
        self._end_there()

    # Faults

    def reset(self, *, drops_requests: bool) -> None:
        """Break the connection. Replies that are under way are lost; requests may still arrive."""
        self._back.clear()
        self._drops_requests = self._drops_requests or drops_requests
        self._loop.call_later(self._delay_s(), self._break_client)
        self._travel_there(self._end_there)
        self._is_dead = True

    def go_silent(self) -> None:
        """Lose everything from now on in both directions. Neither end is told."""
        self._network.happened["half-open connections"] += 1
        self._is_dead = self._drops_requests = True

    def catch_up(self) -> None:
        """Do what the store did not do while it was paused."""
        while self._held and not self.store.is_paused:
            self._held.popleft()()

    def _delay_s(self) -> float:
        return self._network.random.random() * self._network.faults.delay_s

    def _travel_there(self, arrive: Callable[[], None]) -> None:
        self._due_there = max(self._due_there, self._loop.time() + self._delay_s())
        self._there.append(arrive)
        # The first one under way arrives: timers of one moment have no order.
        self._loop.call_at(self._due_there, lambda: self._there.popleft()())

    def _travel_back(self, arrive: Callable[[], None]) -> None:
        if not self._is_dead:
            self._due_back = max(self._due_back, self._loop.time() + self._delay_s())
            self._back.append(arrive)
            self._loop.call_at(self._due_back, lambda: self._back and self._back.popleft()())

    def _arrive_there(self, data: bytes) -> None:
        if self.store.is_paused or self._held:
            self._held.append(partial(self._receive, data))
        else:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self._has_ended or self._drops_requests:
            return
        for command in received_commands(self._frames, data):
            if self._has_ended or self._drops_requests:
                return
            self.session.received(command)

    def _end_there(self) -> None:
        if self.store.is_paused or self._held:
            self._held.append(self._disconnect)
        else:
            self._disconnect()

    def _disconnect(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.store.connections.pop(self, None)
            self.session.disconnected()

    def _arrive_back(self, data: bytes) -> None:
        rest = memoryview(data)
        while len(rest) and not self._is_closed and not self._is_dead:
            space = memoryview(self._protocol.get_buffer(-1))
            count = min(len(space), len(rest), self._piece_bytes)
            space[:count] = rest[:count]
            rest = rest[count:]
            self._protocol.buffer_updated(count)

    def _close_client(self) -> None:
        if not self._is_closed and not self._is_dead:
            self._protocol.eof_received()
            self.abort()

    def _break_client(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._protocol.connection_lost(ConnectionResetError("reset by the network"))
