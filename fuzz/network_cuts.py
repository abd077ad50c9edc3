"""Connections between stores through relays that a test can cut, in one direction or in both.

Each store listens on LISTEN_HOST and tells others RELAY_HOST with the same port, where a relay listens. A link begins
with a HELLO that names the replica of the owner, so the relay knows which store is at the other end. A relay that is
cut passes nothing on and closes nothing, like a network that drops packets.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from headrace.adapters.tcp.replica_protocol import HELLO_BYTES
from headrace.codec.replica_messages import Hello, decode_message

LISTEN_HOST: Final = "127.0.0.1"
RELAY_HOST: Final = "127.0.0.2"
AWS: Final = "aws"
"""The name of the AWS emulator as an end of connections."""

_CHUNK_BYTES: Final = 1 << 16
_POLL_S: Final = 0.05

Cut = tuple[str, str]
"""From and to: names of stores, or AWS."""


def free_port() -> int:
    """A port that is free on both addresses. Another process could take it before it is used."""
    while True:
        with socket.create_server((LISTEN_HOST, 0)) as own:
            port = int(own.getsockname()[1])
            with suppress(OSError), closing(socket.create_server((RELAY_HOST, port))):
                return port


class NetworkCuts:
    """The relays of one deployment, on a thread of their own. `name_of` finds the store of a replica id."""

    def __init__(self) -> None:
        self.name_of: Callable[[str], str] = lambda replica: replica
        self._cuts: frozenset[Cut] = frozenset()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    def cut(self, *cuts: Cut) -> None:
        """From now on nothing passes in these directions, and everything in the others."""
        self._cuts = frozenset(cuts)

    def heal(self) -> None:
        """Everything passes again. Connections that missed something meanwhile go on where they were."""
        self.cut()

    def between_stores(self, name: str, port: int) -> None:
        """Relay the links to the replica port of a store."""
        self._call(self._serve(RELAY_HOST, port, lambda reader, writer: self._relay_link(name, port, reader, writer)))

    def to_store(self, port: int) -> None:
        """Relay what clients send to a store, which nothing cuts."""
        self._call(self._serve(RELAY_HOST, port, lambda reader, writer: self._relay_client(port, reader, writer)))

    def to_aws(self, name: str, host: str, port: int) -> int:
        """Relay what a store asks of AWS; the port that it is to use."""
        return self._call(
            self._serve(RELAY_HOST, 0, lambda reader, writer: self._relay_aws(name, host, port, reader, writer))
        )

    async def _serve(self, host: str, port: int, relay: Relay) -> int:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(_until_closed(relay(reader, writer), writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        server = await asyncio.start_server(connected, host, port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _relay_link(
        self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raw = await reader.readexactly(HELLO_BYTES)
        hello = decode_message(memoryview(raw))
        assert isinstance(hello, Hello), hello
        owner = await asyncio.to_thread(self.name_of, hello.own_replica.hex())
        await self._join(owner, name, (LISTEN_HOST, port), reader, writer, raw)

    async def _relay_client(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._join("", "", (LISTEN_HOST, port), reader, writer)

    async def _relay_aws(
        self, name: str, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._join(name, AWS, (host, port), reader, writer)

    async def _join(
        self,
        near: str,
        far: str,
        address: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: bytes = b"",
    ) -> None:
        """Pass bytes on in both directions until an end closes."""
        await self._passable(near, far)
        far_reader, far_writer = await asyncio.open_connection(*address)
        try:
            far_writer.write(first)
            ways = [self._pass(near, far, reader, far_writer), self._pass(far, near, far_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            far_writer.transport.abort()

    async def _pass(self, near: str, far: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._passable(near, far)
                writer.write(data)
                await writer.drain()
        await self._passable(near, far)  # the other end hears of a closed connection as late as of data

    async def _passable(self, near: str, far: str) -> None:
        while (near, far) in self._cuts:
            await asyncio.sleep(_POLL_S)

    def _call(self, work: Coroutine[Any, Any, int]) -> int:
        future: Future[int] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all relays."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> int:
        for server in self._servers:
            server.close()
        ended = list(self._connections)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        return len(ended)


Relay = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def _until_closed(relay: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
    """Run a relay; an end that goes away ends it, and it ends the other one."""
    try:
        with suppress(OSError, asyncio.IncompleteReadError):
            await relay
    finally:
        writer.transport.abort()


@contextmanager
def network_cuts() -> Iterator[NetworkCuts]:
    cuts = NetworkCuts()
    cuts.start()
    try:
        yield cuts
    finally:
        cuts.stop()
