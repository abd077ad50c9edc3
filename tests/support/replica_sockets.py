"""Both ends of replica links over real sockets, and a proxy between them that harms what passes."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from recorded_links import OWNER, PEER, RecordingEvents, RecordingHost, open_message

from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.listener import bind_socket
from headrace.adapters.tcp.replica_links import LinkTls, TcpReplicaLinks
from headrace.adapters.tcp.replica_listener import ReplicaListener
from headrace.adapters.tcp.replica_protocol import LinkIdentity, LinkTimes
from headrace.model.container_logs import ReplicaId
from headrace.model.replica_placement import ReplicaAddress

CLUSTER = b"c" * 16
SECRET = b"do not tell this to other people"
PATIENT = LinkTimes(dial_s=60, handshake_s=60, silence_s=60, stalled_s=60, forgotten_s=60)
"""For tests of something else, on a machine that may be busy."""

UP, DOWN = "up", "down"


def identity(replica: ReplicaId, secret: bytes = SECRET, cluster: bytes = CLUSTER) -> LinkIdentity:
    return LinkIdentity(cluster, replica, 7, secret)


class Proxy:
    """Forwards connections to a port, as long as the direction is open and in pieces of at most `piece_bytes`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._bound = bind_socket("127.0.0.1", 0)
        self.port: int = self._bound.getsockname()[1]
        self.piece_bytes = 1 << 16
        self.connections = 0
        self._open = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        self.heal()
        self._sockets: list[tuple[socket.socket, socket.socket]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._bound.listen()
        self._spawn(self._accept())

    def cut(self, *directions: str) -> None:
        """Forward nothing more; connections stay as they are."""
        for direction in directions:
            self._open[direction].clear()

    def heal(self) -> None:
        for is_open in self._open.values():
            is_open.set()

    async def inject(self, direction: str, data: bytes) -> None:
        """Send other bytes over the last connection."""
        client, server = self._sockets[-1]
        await asyncio.get_running_loop().sock_sendall(server if direction == UP else client, data)

    def tear(self) -> None:
        """End all connections wherever their messages are."""
        for pair in self._sockets:
            for sock in pair:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in [self._bound, *(sock for pair in self._sockets for sock in pair)]:
            sock.close()

    def _spawn(self, work: object) -> None:
        self._tasks.add(asyncio.create_task(work))  # type: ignore[arg-type]

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(self._bound)
            client.setblocking(False)
            server = socket.socket()
            server.setblocking(False)
            self._sockets.append((client, server))
            await loop.sock_connect(server, ("127.0.0.1", self._target_port))
            self.connections += 1
            self._spawn(self._pump(client, server, UP))
            self._spawn(self._pump(server, client, DOWN))

    async def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while True:
                await self._open[direction].wait()
                try:
                    data = await loop.sock_recv(source, self.piece_bytes)
                except OSError:
                    data = b""  # an end that did not read all resets the connection: the other one must learn it, too
                await self._open[direction].wait()
                if not data:
                    break
                await loop.sock_sendall(target, data)
            target.shutdown(socket.SHUT_WR)


@dataclass
class Ends:
    """An owner's links, the host that they reach, and the proxy between them."""

    links: TcpReplicaLinks
    events: RecordingEvents
    host: RecordingHost
    listener: ReplicaListener
    proxy: Proxy
    addresses: dict[ReplicaId, ReplicaAddress]
    port: int
    batches: list[int]
    corrupt: list[str]
    """The ends at which a message could not be decoded."""
    sent: Counter[str]
    """The bytes that the links have sent, by zone."""

    async def connect(self, session: int = 1) -> None:
        """Return when the host has received an OPEN."""
        message = open_message(session)
        self.links.send(PEER, message)
        await self.host.until(lambda: message in self.host.messages)


@asynccontextmanager
async def replica_ends(
    times: LinkTimes = PATIENT,
    *,
    owner_secret: bytes = SECRET,
    unproved_max: int = 64,
    host: RecordingHost | None = None,
    server_tls: ServerTls | None = None,
    tls: LinkTls | None = None,
    tls_name: str = "",
) -> AsyncIterator[Ends]:
    """Both ends, not connected yet. Checks at the end that no task and no socket is left."""
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    host = host or RecordingHost(PEER)
    batches: list[int] = []
    sent: Counter[str] = Counter()
    corrupt: list[str] = []
    listener = ReplicaListener(
        host,
        identity(PEER),
        times=times,
        tls=server_tls,
        unproved_max=unproved_max,
        on_corrupt=lambda: corrupt.append("host"),
    )
    bound = bind_socket("127.0.0.1", 0)
    port = bound.getsockname()[1]
    await listener.start(bound)
    proxy = Proxy(port)
    proxy.start()
    addresses = {PEER: ReplicaAddress("127.0.0.1", proxy.port, tls_name, "use1-az2", "store-of-peer")}
    links = TcpReplicaLinks(
        identity(OWNER, owner_secret),
        addresses.get,
        times=times,
        tls=tls,
        on_batch=batches.append,
        on_sent=lambda zone, count: sent.update({zone: count}),
        on_corrupt=lambda: corrupt.append("owner"),
    )
    events = RecordingEvents()
    links.start(events)
    try:
        yield Ends(links, events, host, listener, proxy, addresses, port, batches, corrupt, sent)
    finally:
        await links.close()
        await listener.close()
        await proxy.close()
    assert asyncio.all_tasks() == before, "a task is left"
    assert not links.is_up(PEER)
    await loop.shutdown_default_executor()


async def raw_connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that says what a test wants."""
    return await asyncio.open_connection("127.0.0.1", port)
