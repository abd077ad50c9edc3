"""The client of the prototype, and what the prototype does with the workloads that Headrace gets.

It frames events as Headrace's writer does: a header each, one join per block, a block at once when none is in flight,
else when it is full or an acknowledgement arrives. It has no routing keys, no API and no errors.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.latencies import Latencies
from benchmarks.pacing import paced_ns
from benchmarks.prototype_server import BLOCK_BYTES, COUNT, LENGTH, LOOPBACK, SOCKET_BUFFER_BYTES
from benchmarks.settings import AppendLoad, PacedLoad, Settings
from benchmarks.workloads import Throughput

BLOCKS_IN_FLIGHT: Final = 4
_EVENT_HEADER: Final = struct.Struct(">ii")


@contextmanager
def running_prototype(directory: Path, pool_bytes: int) -> Iterator[int]:
    """The server in a process of its own; yields its port. Its file is gone afterwards."""
    path = directory / "prototype-log"
    command = [sys.executable, "-m", "benchmarks.prototype_server", str(path), str(pool_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().removeprefix("ready "))
        finally:
            process.stdin.close()
            path.unlink(missing_ok=True)


class PrototypeWriter:
    """One connection. `latencies_ns` are those of all events that were written with a due time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self._changed = threading.Condition()
        self._parts = [b""]  # the first one is for the length of the block
        self._bytes = 0
        self._due_ns: list[int] = []
        self._in_flight: deque[list[int]] = deque()
        self._acknowledged = 0
        self.latencies_ns: list[int] = []
        self._reader = threading.Thread(target=self._read, name="prototype-acknowledgements")
        self._reader.start()

    def write_batch(self, events: list[bytes]) -> None:
        """Events of one length."""
        event_bytes = len(events[0]) + _EVENT_HEADER.size
        for first in range(0, len(events), BLOCK_BYTES // event_bytes):
            some = events[first : first + BLOCK_BYTES // event_bytes]
            parts = [_EVENT_HEADER.pack(0, len(some[0]))] * (2 * len(some))
            parts[1::2] = some
            with self._changed:
                if self._bytes + len(some) * event_bytes > BLOCK_BYTES or not self._in_flight:
                    self._send()
                self._parts += parts
                self._bytes += len(some) * event_bytes

    def write(self, event: bytes, due_ns: int) -> None:
        with self._changed:
            self._parts += (_EVENT_HEADER.pack(0, len(event)), event)
            self._bytes += len(event) + _EVENT_HEADER.size
            self._due_ns.append(due_ns)
            if self._bytes >= BLOCK_BYTES or not self._in_flight:
                self._send()

    def close(self) -> None:
        """Return when everything is acknowledged."""
        with self._changed:
            self._send()
            self._changed.wait_for(lambda: not self._in_flight and not self._bytes)
        self._socket.shutdown(socket.SHUT_WR)
        self._reader.join()
        self._socket.close()

    def _send(self) -> None:
        self._changed.wait_for(lambda: len(self._in_flight) < BLOCKS_IN_FLIGHT)
        if not self._bytes:
            return  # there is nothing, or the thread of the acknowledgements has sent it meanwhile
        parts, self._parts = self._parts, [b""]
        parts[0], self._bytes = LENGTH.pack(self._bytes), 0
        due_ns, self._due_ns = self._due_ns, []
        self._in_flight.append(due_ns)
        self._socket.sendall(b"".join(parts))

    def _read(self) -> None:
        received = b""
        while data := self._socket.recv(1 << 10):
            received += data
            whole = len(received) // COUNT.size * COUNT.size
            if not whole:
                continue
            durable = COUNT.unpack_from(received, whole - COUNT.size)[0]
            received = received[whole:]
            now_ns = time.monotonic_ns()
            with self._changed:
                while self._acknowledged < durable:
                    self._acknowledged += 1
                    self.latencies_ns += [now_ns - due_ns for due_ns in self._in_flight.popleft()]
                self._send()
                self._changed.notify_all()


def append_burst(port: int, load: AppendLoad, settings: Settings) -> Throughput:
    """As `workloads.append_burst`."""
    events = [os.urandom(load.event_bytes)] * settings.batch_events
    writer = PrototypeWriter(port)
    started_s = time.perf_counter()
    left = load.events
    while left:
        count = min(left, settings.batch_events)
        writer.write_batch(events[:count])
        left -= count
    writer.close()
    return Throughput.of(load, time.perf_counter() - started_s)


def paced_acknowledgements(port: int, load: PacedLoad) -> Latencies:
    """As `workloads.paced_acknowledgements`."""
    event = os.urandom(load.event_bytes)
    writer = PrototypeWriter(port)
    gc.disable()
    try:
        for due_ns in paced_ns(load.rate_per_s, int(load.rate_per_s * load.seconds)):
            writer.write(event, due_ns)
        writer.close()
    finally:
        gc.enable()
    return Latencies.of_ns(writer.latencies_ns)
