"""The server's end of the wire protocol: sockets for sessions, on asyncio or uvloop.

Receives with `BufferedProtocol` straight into the receive memory, and sends views of the cache without joining them.
What a session may do is its own business; this only moves bytes and bounds how many connections there are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final, cast

from headrace.adapters.tcp.arrivals import Arrivals, ServerTls
from headrace.model.errors import HeadraceError
from headrace.model.log_limits import LogLimit
from headrace.segmentstore.connections.receive_memory import PATIENCE_S, ReceiveMemory
from headrace.segmentstore.connections.session import Session
from headrace.segmentstore.store import SegmentStore
from headrace.zones import ZoneNetworks

# How many connections a process accepts: in total, and from one address.
#
# The bound of an address keeps one client from taking all connections. Some connections are reserved for networks of
# the deployment's own functions, so that streams can still be created, sealed and scaled when clients have taken the
# others.

RESERVED_CONNECTIONS: Final = 64
"""Connections of reserved networks only; with few connections in total an eighth of them."""

_SHARE_OF_AN_ADDRESS: Final = 4

Network = IPv4Network | IPv6Network


class Bound(StrEnum):
    """The bound that a refused connection would exceed."""

    TOTAL = "total"
    ADDRESS = "address"


class ConnectionBounds:
    """Counts open connections by address. `per_address_max` None: a quarter of `total_max`."""

    def __init__(
        self, total_max: int, per_address_max: int | None = None, reserved_networks: Sequence[Network] = ()
    ) -> None:
        self.total_max = total_max
        self.per_address_max = per_address_max or max(1, total_max // _SHARE_OF_AN_ADDRESS)
        self._networks = tuple(reserved_networks)
        self._by_address: Counter[str] = Counter()
        self.total = 0

    def exceeded_by(self, address: str) -> Bound | None:
        """The bound that one more connection from `address` would exceed; None if it may be opened."""
        reserved = min(RESERVED_CONNECTIONS, self.total_max // 8) if self._networks else 0
        if self.total >= self.total_max or (self.total >= self.total_max - reserved and not self._is_reserved(address)):
            return Bound.TOTAL
        return Bound.ADDRESS if self._by_address[address] >= self.per_address_max else None

    def opened(self, address: str) -> None:
        self._by_address[address] += 1
        self.total += 1

    def closed(self, address: str) -> None:
        self._by_address[address] -= 1
        self.total -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _is_reserved(self, address: str) -> bool:
        try:
            return any(ip_address(address) in network for network in self._networks)
        except ValueError:  # the peer has no address any more
            return False


_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 4096
TLS_CONNECTIONS_MAX: Final = 1024
"""Each takes some 0.1 MiB for its keys and for bytes that are not decrypted yet, in addition to the receive memory."""

RECEIVE_BYTES: Final = 64 << 20
"""For commands of which only a part has arrived: enough for 160 connections that are in the middle of 256 KiB."""

SOCKET_BUFFER_BYTES: Final = 1 << 20
STALL_CHECK_S: Final = 10.0

_PROBE_AFTER_S: Final = 60
_PROBE_EVERY_S: Final = 15
_PROBES: Final = 4
VANISHED_AFTER_S: Final = _PROBE_AFTER_S + _PROBES * _PROBE_EVERY_S
"""The time after which a connection ends whose peer has lost its network, also if nothing is sent to it."""

_PROBE_OPTIONS: Final = tuple(
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
    )
    if hasattr(socket, name)  # macOS lacks the first one
)
_BACKLOG: Final = 1024
_JOIN_BELOW_BYTES: Final = 16 << 10
"""Small replies go out as one buffer: a system call with many tiny parts costs more than joining them."""


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that has its port, chosen by the system for 0, but refuses connections until a listener starts on it.

    Raises:
        OSError: the port is taken or the host is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


class WireListener:
    """`random_uuid` gives unsigned 128-bit numbers. See `ConnectionBounds` for the bounds of connections.

    `tls` says whether peers must, may or must not use TLS. `networks` tell the zones of peers, by which bytes that were
    sent are counted.
    """

    def __init__(
        self,
        store: SegmentStore,
        random_uuid: Callable[[], int],
        *,
        connections_max: int = CONNECTIONS_MAX,
        connections_per_address_max: int | None = None,
        reserved_networks: Sequence[Network] = (),
        receive_bytes: int = RECEIVE_BYTES,
        tls: ServerTls | None = None,
        networks: ZoneNetworks | None = None,
    ) -> None:
        self._store = store
        self._networks = networks or ZoneNetworks()
        self._random_uuid = random_uuid
        self.connections_max = connections_max
        self._bounds = ConnectionBounds(connections_max, connections_per_address_max, reserved_networks)
        self.receive_memory = ReceiveMemory(receive_bytes, connections_max, on_waiting=self._watch_slow)
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._refusals_logged = LogLimit()
        self._arrivals = Arrivals(
            self, tls or ServerTls(), failures=store.metrics.handshakes_failed, on_plaintext=self._count_plaintext
        )

    async def start(self, bound: socket.socket) -> None:
        """Accept connections on a socket from `bind_socket`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._arrivals.protocol, sock=bound, backlog=_BACKLOG)
        self._stall_timer = loop.call_later(STALL_CHECK_S, self._check_stalled)

    async def drain(self, deadline_s: float) -> None:
        """Take no more connections and commands, and answer what was taken, as far as that is done in time."""
        self._stopping = True
        self._store.end_waits()
        if self._server is not None:
            self._server.close()
        self._arrivals.abort_all()
        try:
            async with asyncio.timeout(deadline_s):
                await self._finish_sessions()
        except TimeoutError:
            _log.warning("event=drain_incomplete connections=%d", len(self._connections))

    async def _finish_sessions(self) -> None:
        await asyncio.gather(*(connection.session.finish() for connection in self._connections))
        for owned in list(self._store.owned.values()):
            with suppress(HeadraceError):  # a container that has failed sends no replies any more
                await owned.container.log.durable()

    async def stop(self) -> None:
        """Accept no more connections, and close the open ones."""
        self._stopping = True
        for timer in (self._stall_timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        self._arrivals.abort_all()
        for connection in list(self._connections):
            connection.session.close()
        if self._server is not None:
            await self._server.wait_closed()

    def drop_all(self) -> None:
        """Abort every connection: what is in flight has an unknown outcome."""
        for connection in list(self._connections):
            connection.session.abort()

    @property
    def accepts(self) -> bool:
        """Whether it still takes connections."""
        return not self._stopping

    @property
    def held_reads(self) -> int:
        """Reads of all connections that wait for data at a tail."""
        return len(self._store.held_reads)

    # For the arrivals

    def admit(self, address: str, peer: str) -> bool:
        """False: there are too many, or the listener was stopped while this connection was on its way in."""
        if self._stopping:
            return False
        if (bound := self._bounds.exceeded_by(address)) is not None:
            self._refuse(peer, bound)
            return False
        self._bounds.opened(address)
        self._store.metrics.connections = self._bounds.total
        return True

    def released(self, address: str) -> None:
        self._bounds.closed(address)
        self._store.metrics.connections = self._bounds.total

    def open(self, address: str, peer: str) -> asyncio.BufferedProtocol:
        return _Connection(self, address, peer, self._networks.zone_of(address), self._store.metrics.sent_bytes)

    # For the connections

    def open_session(self, connection: _Connection, peer: str) -> Session:
        self._connections.add(connection)
        return Session(self._store, connection, self.receive_memory, peer, self._random_uuid)

    def forget(self, connection: _Connection, address: str) -> None:
        self._connections.discard(connection)
        self.released(address)

    def _count_plaintext(self) -> None:
        self._store.metrics.plaintext_connections += 1

    def _refuse(self, peer: str, bound: Bound) -> None:
        """Count a refused connection, and log it unless another one was logged just before for the same bound."""
        metrics = self._store.metrics
        metrics.connections_refused[bound] += 1
        if self._refusals_logged.allows(self._store.clock.monotonic_s(), bound):
            _log.warning(
                "event=connection_refused peer=%s bound=%s connections=%d refused=%d",
                peer,
                bound,
                self._bounds.total,
                metrics.connections_refused[bound],
            )

    def _watch_slow(self) -> None:
        """Close slow connections that hold receive memory, as long as others wait for it."""
        if self._slow_timer is None and not self._stopping:
            self._slow_timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._close_slowest)

    def _close_slowest(self) -> None:
        self._slow_timer = None
        self.receive_memory.close_slowest()
        if self.receive_memory.waiting:
            self._watch_slow()

    def _check_stalled(self) -> None:
        now_s = self._store.clock.monotonic_s()
        for connection in list(self._connections):
            connection.session.check_stalled(now_s)
        self._stall_timer = asyncio.get_running_loop().call_later(STALL_CHECK_S, self._check_stalled)


class _Connection(asyncio.BufferedProtocol):
    """One socket; the channel of one session."""

    session: Session

    def __init__(
        self, listener: WireListener, address: str, peer: str, zone: str, sent_bytes: MutableMapping[str, int]
    ) -> None:
        """`sent_bytes` counts by zone; `zone` is that of the peer."""
        self._listener = listener
        self._zone = zone
        self._sent_bytes = sent_bytes
        self._transport: asyncio.Transport | None = None
        self._address = address
        self._peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        self._transport = stream
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            raw.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBE_OPTIONS:
            raw.setsockopt(socket.IPPROTO_TCP, name, value)
        # Any byte that waits in the transport counts as blocked: only then is "nothing waits" told, and the cache may
        # use the memory again.
        stream.set_write_buffer_limits(high=0, low=0)
        self.session = self._listener.open_session(self, self._peer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._listener.forget(self, self._address)
            self.session.disconnected()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.session.assembler.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self.session.received(nbytes)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.session.writing_paused()

    def resume_writing(self) -> None:
        self.session.writing_resumed()

    def send(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        gathered: list[bytes | bytearray | memoryview] = []
        small: list[bytes | bytearray | memoryview] = []
        for part in parts:
            if len(part) < _JOIN_BELOW_BYTES:
                small.append(part)
                continue
            if small:
                gathered.append(b"".join(small))
                small = []
            gathered.append(part)
        if small:
            gathered.append(b"".join(small))
        self._sent_bytes[self._zone] += sum(map(len, gathered))
        self._transport.writelines(gathered)

    def pause_receiving(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_receiving(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
