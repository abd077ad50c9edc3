"""`python -m benchmarks.prototype_server FILE POOL_BYTES`: the bare minimum of the store's design, as its ceiling.

One event loop receives blocks into a fixed pool, one thread writes all that came and syncs once, and one call on the
loop acknowledges. There are no segments, no checksums, no limits and no tier 2. The pool and the file are written once
before, and then used again and again. It prints `ready PORT` and ends with its input.

A block is its length in 4 bytes, and so many bytes. An acknowledgement is the number of durable blocks of a connection
in 8 bytes. One connection at a time has the whole pool.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, cast

import uvloop

LOOPBACK: Final = "127.0.0.1"
LENGTH: Final = struct.Struct("<I")
COUNT: Final = struct.Struct("<Q")
BLOCK_BYTES: Final = 1 << 20
SOCKET_BUFFER_BYTES: Final = 1 << 20
FILE_BYTES: Final = 256 << 20
_PARTS_PER_WRITE_MAX: Final = 1024


class Log:
    """One thread, one file that was written before, one sync for all that is queued."""

    def __init__(self, path: Path, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        for position in range(0, FILE_BYTES, BLOCK_BYTES):
            os.pwrite(self._file, bytes(BLOCK_BYTES), position)
        os.fsync(self._file)
        self._position = 0
        self._deliver = deliver
        self._lock = threading.Lock()
        self._queue: list[tuple[memoryview, Connection]] = []
        self._news: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def submit(self, block: memoryview, connection: Connection) -> None:
        with self._lock:
            self._queue.append((block, connection))
            if len(self._queue) == 1:
                self._news.put(None)

    def _run(self) -> None:
        while True:
            self._news.get()
            with self._lock:
                batch, self._queue = self._queue, []
            blocks = [block for block, _ in batch]
            if self._position + sum(map(len, blocks)) > FILE_BYTES:
                self._position = 0
            for first in range(0, len(blocks), _PARTS_PER_WRITE_MAX):
                self._position += os.pwritev(self._file, blocks[first : first + _PARTS_PER_WRITE_MAX], self._position)
            os.fdatasync(self._file)
            self._deliver(partial(_acknowledge, batch))


def _acknowledge(batch: list[tuple[memoryview, Connection]]) -> None:
    for _, connection in batch:
        connection.durable += 1
    for connection in {connection for _, connection in batch}:
        connection.acknowledge()


class Connection(asyncio.BufferedProtocol):
    """Receives into the pool, and cuts what arrives into blocks in place."""

    def __init__(self, pool: memoryview, log: Log) -> None:
        self._pool = pool
        self._log = log
        self._transport: asyncio.Transport | None = None
        self._start = self._end = 0
        self.durable = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            raw.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self._pool) - self._end < BLOCK_BYTES:
            begun = self._end - self._start
            self._pool[:begun] = self._pool[self._start : self._end]
            self._start, self._end = 0, begun
        return self._pool[self._end : self._end + BLOCK_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        while self._end - self._start >= LENGTH.size:
            first = self._start + LENGTH.size
            last = first + LENGTH.unpack_from(self._pool, self._start)[0]
            if last > self._end:
                return
            self._log.submit(self._pool[first:last], self)
            self._start = last

    def acknowledge(self) -> None:
        if self._transport is not None:
            self._transport.write(COUNT.pack(self.durable))


async def _serve(path: Path, pool_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    pool = memoryview(bytearray(pool_bytes))
    for position in range(0, pool_bytes, BLOCK_BYTES):
        pool[position : position + BLOCK_BYTES] = bytes(BLOCK_BYTES)
    log = Log(path, loop.call_soon_threadsafe)
    server = await loop.create_server(lambda: Connection(pool, log), LOOPBACK, 0)
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
