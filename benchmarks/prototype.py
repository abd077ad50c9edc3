"""The client of the prototype, and what the prototype does with the workloads that Headrace gets.

It frames events as Headrace's writer does: each event, of any length, gets its header and goes into the block of its
key's segment, with one join per block. A block is sent at once when none is in flight, else when it is full or an
acknowledgement arrives. The segments of all keys are known before, and there is no API, no memory limit and no error.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.latencies import Latencies
from benchmarks.pacing import paced_ns
from benchmarks.prototype_server import BLOCK_BYTES, COUNT, LENGTH, LOOPBACK, SOCKET_BUFFER_BYTES
from benchmarks.settings import AppendLoad, PacedLoad, Settings
from benchmarks.workloads import Throughput, routing_keys

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


class _OpenBlock:
    """What waits for one segment. The first part is for the length of the block."""

    __slots__ = ("due_ns", "parts", "size_bytes")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.parts = [b""]
        self.size_bytes = 0
        self.due_ns: list[int] = []


class PrototypeWriter:
    """One connection. `latencies_ns` are those of all events that were written with a due time.

    `segment_of_key` has the segment of each routing key, counted from 0.
    """

    def __init__(self, port: int, segment_of_key: Mapping[str, int]) -> None:
        self._socket = socket.create_connection((LOOPBACK, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self._changed = threading.Condition()
        self._open = [_OpenBlock() for _ in range(max(segment_of_key.values()) + 1)]
        self._by_key = {key: self._open[segment] for key, segment in segment_of_key.items()}
        self._in_flight: deque[list[int]] = deque()
        self._acknowledged = 0
        self.latencies_ns: list[int] = []
        self._reader = threading.Thread(target=self._read, name="prototype-acknowledgements")
        self._reader.start()

    def write_batch(self, events: list[bytes], keys: list[str]) -> None:
        pack, by_key = _EVENT_HEADER.pack, self._by_key
        with self._changed:
            for event, key in zip(events, keys, strict=True):
                block = by_key[key]
                block.parts += (pack(0, len(event)), event)
                block.size_bytes += len(event) + _EVENT_HEADER.size
                if block.size_bytes >= BLOCK_BYTES:
                    self._send(block)
            self._send_if_idle()

    def write(self, event: bytes, key: str, due_ns: int) -> None:
        with self._changed:
            block = self._by_key[key]
            block.parts += (_EVENT_HEADER.pack(0, len(event)), event)
            block.size_bytes += len(event) + _EVENT_HEADER.size
            block.due_ns.append(due_ns)
            if block.size_bytes >= BLOCK_BYTES:
                self._send(block)
            self._send_if_idle()

    def close(self) -> None:
        """Return when everything is acknowledged."""
        with self._changed:
            for block in self._open:
                self._send(block)
            self._changed.wait_for(lambda: not self._in_flight and not any(block.size_bytes for block in self._open))
        self._socket.shutdown(socket.SHUT_WR)
        self._reader.join()
        self._socket.close()

    def _send_if_idle(self) -> None:
        if not self._in_flight:
            for block in self._open:
                self._send(block)

    def _send(self, block: _OpenBlock) -> None:
        self._changed.wait_for(lambda: len(self._in_flight) < BLOCKS_IN_FLIGHT)
        if not block.size_bytes:
            return  # there is nothing, or the thread of the acknowledgements has sent it meanwhile
        block.parts[0] = LENGTH.pack(block.size_bytes)
        self._in_flight.append(block.due_ns)
        self._socket.sendall(b"".join(block.parts))
        block.clear()

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
                if len(self._in_flight) < BLOCKS_IN_FLIGHT:
                    self._send(max(self._open, key=lambda block: block.size_bytes))
                self._changed.notify_all()


def append_burst(port: int, load: AppendLoad, settings: Settings) -> Throughput:
    """As `workloads.append_burst`."""
    events = [os.urandom(load.event_bytes)] * settings.batch_events
    all_keys = routing_keys(settings)
    keys = [all_keys[number % len(all_keys)] for number in range(settings.batch_events)]
    writer = PrototypeWriter(port, _segments(all_keys, settings))
    started_s = time.perf_counter()
    left = load.events
    while left:
        count = min(left, settings.batch_events)
        writer.write_batch(events[:count], keys[:count])
        left -= count
    writer.close()
    return Throughput.of(load, time.perf_counter() - started_s)


def paced_acknowledgements(port: int, load: PacedLoad, settings: Settings) -> Latencies:
    """As `workloads.paced_acknowledgements`."""
    event = os.urandom(load.event_bytes)
    keys = routing_keys(settings)
    writer = PrototypeWriter(port, _segments(keys, settings))
    gc.disable()
    try:
        for number, due_ns in enumerate(paced_ns(load.rate_per_s, int(load.rate_per_s * load.seconds))):
            writer.write(event, keys[number % len(keys)], due_ns)
        writer.close()
    finally:
        gc.enable()
    return Latencies.of_ns(writer.latencies_ns)


def _segments(keys: list[str], settings: Settings) -> dict[str, int]:
    return {key: number % settings.segments for number, key in enumerate(keys)}
