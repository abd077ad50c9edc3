"""What this machine gives without us: durable appends, bytes through loopback TCP, the processor's speed, its sleep."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.latencies import Latencies
from benchmarks.pacing import paced_ns

LOOPBACK = "127.0.0.1"
SOCKET_BLOCK_BYTES = 1024 * 1024
_ADDITIONS_PER_LOOK = 100_000


@dataclass(frozen=True, slots=True)
class SyncedWrites:
    """Blocks written one after the other, each made durable before the next."""

    per_second: float
    mb_per_s: float
    latencies: Latencies


def synced_writes(
    directory: Path, block_bytes: int, seconds: float, *, recycled_bytes: int | None = None
) -> SyncedWrites:
    """pwrite and fdatasync for `seconds`: at the end of a growing file, or over one of `recycled_bytes` written before.

    A recycled file has its blocks allocated, which saves the file system's own journal: the best a log can do.
    """
    with _scratch_file(directory, recycled_bytes) as file:
        return _write_for(file, os.urandom(block_bytes), seconds, recycled_bytes)


def paced_synced_writes(
    directory: Path, block_bytes: int, rate_per_s: int, seconds: float, recycled_bytes: int
) -> Latencies:
    """pwrite and fdatasync at each of `rate_per_s` moments a second over a recycled file, from when the moment was due.

    A disk and a core that had a rest in between take longer than those that are asked again at once.
    """
    block, blocks = os.urandom(block_bytes), recycled_bytes // block_bytes
    taken_ns: list[int] = []
    with _scratch_file(directory, recycled_bytes) as file:
        for number, due_ns in enumerate(paced_ns(rate_per_s, max(1, int(rate_per_s * seconds)))):
            os.pwrite(file, block, number % blocks * block_bytes)
            os.fdatasync(file)
            taken_ns.append(time.monotonic_ns() - due_ns)
    return Latencies.of_ns(taken_ns)


def python_additions_per_s(seconds: float) -> float:
    """What one thread of Python gets done while nothing else runs. On a shared machine it halves from second to second,
    and with it goes whatever is bound by the processor."""
    done = 0
    started_s = time.perf_counter()
    while True:
        for _ in range(_ADDITIONS_PER_LOOK):
            done += 1
        elapsed_s = time.perf_counter() - started_s
        if elapsed_s >= seconds:
            return done / elapsed_s


def late_wakes(rate_per_s: int, seconds: float) -> Latencies:
    """How late a thread wakes that sleeps until the next of `rate_per_s` moments a second, and does nothing else.

    Between an event and its acknowledgement some six threads wake, one after the other: none is earlier than this.
    """
    moments = paced_ns(rate_per_s, max(1, int(rate_per_s * seconds)))
    return Latencies.of_ns(time.monotonic_ns() - due_ns for due_ns in moments)


@contextmanager
def busy_cores() -> Iterator[None]:
    """Every core has something else to do meanwhile, as it has while the whole system runs on one machine.

    A thread that wakes up then waits for the end of somebody's time slice: milliseconds, whatever the disk can do.
    """
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
        for each in spinning:
            each.wait()


@contextmanager
def _scratch_file(directory: Path, filled_bytes: int | None) -> Iterator[int]:
    """The descriptor of a file that is gone afterwards; empty, or with that many bytes in allocated blocks."""
    path = directory / "raw-writes"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if filled_bytes is not None:
            _fill(file, filled_bytes)
        yield file
    finally:
        os.close(file)
        path.unlink()


def _fill(file: int, length_bytes: int) -> None:
    piece = os.urandom(SOCKET_BLOCK_BYTES)
    for position in range(0, length_bytes, len(piece)):
        os.pwrite(file, piece, position)
    os.fsync(file)


def _write_for(file: int, block: bytes, seconds: float, wrap_bytes: int | None) -> SyncedWrites:
    taken_ns: list[int] = []
    position = 0
    started_ns = before_ns = time.perf_counter_ns()
    while before_ns - started_ns < seconds * 1e9:
        os.pwrite(file, block, position)
        os.fdatasync(file)
        after_ns = time.perf_counter_ns()
        taken_ns.append(after_ns - before_ns)
        before_ns = after_ns
        position += len(block)
        if wrap_bytes is not None and position + len(block) > wrap_bytes:
            position = 0
    elapsed_s = (before_ns - started_ns) / 1e9
    return SyncedWrites(
        len(taken_ns) / elapsed_s, len(taken_ns) * len(block) / elapsed_s / 1e6, Latencies.of_ns(taken_ns)
    )


def loopback_copy_mb_per_s(seconds: float) -> float:
    """One TCP connection, one thread sending and one receiving into a reused buffer."""
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        received = 0

        def receive() -> None:
            nonlocal received
            buffer = bytearray(SOCKET_BLOCK_BYTES)
            while count := receiver.recv_into(buffer):
                received += count

        thread = threading.Thread(target=receive, name="loopback-receiver")
        with receiver:
            block = os.urandom(SOCKET_BLOCK_BYTES)
            started_s = time.perf_counter()
            thread.start()
            while True:  # once at least, however late this thread comes
                sender.sendall(block)
                if time.perf_counter() - started_s >= seconds:
                    break
            sender.shutdown(socket.SHUT_WR)
            thread.join()
            return received / (time.perf_counter() - started_s) / 1e6
