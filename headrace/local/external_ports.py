"""Ports of loopback that pass TCP through to the segment stores, as the load balancer of a deployment does.

A client with the network `external` connects to them. So it can be tried on a laptop whether a program needs anything
but its setting.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 64 << 10

Address = tuple[str, int]


class ExternalPorts:
    """A port for each store. `stores()` are the addresses of the stores now, in the order of the ports."""

    def __init__(self, count: int, stores: Callable[[], Sequence[Address]]) -> None:
        """Binds ports that the system chooses."""
        self._sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
        self._stores = stores
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="external-ports", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def ports(self) -> list[int]:
        return [each.getsockname()[1] for each in self._sockets]

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()

    def stop(self) -> None:
        """Close the ports and all connections. Also after a start that did not happen."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        for each in self._sockets:
            each.close()
        self._loop.close()

    async def _serve(self) -> None:
        self._servers = [
            await asyncio.start_server(lambda *ends, at=index: self._accepted(at, *ends), sock=each)
            for index, each in enumerate(self._sockets)
        ]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accepted(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # The store is not there, or the stack ends: the client sees a closed connection.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                async with _closed(writer):
                    await self._pass_through(index, reader, writer)
        finally:
            self._connections.discard(task)

    async def _pass_through(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        store_reader, store_writer = await asyncio.open_connection(*self._stores()[index])
        async with _closed(store_writer):
            ways = [asyncio.ensure_future(_copy(*way)) for way in ((reader, store_writer), (store_reader, writer))]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()


@contextlib.asynccontextmanager
async def _closed(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Closes a connection when its peer has taken all bytes; at once after an error, and if the stack ends."""
    try:
        yield
        writer.close()
        await writer.wait_closed()
    except BaseException:
        writer.transport.abort()
        raise


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on all bytes and then their end. The other way stays open: the peer may still have an answer."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
