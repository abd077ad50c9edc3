"""`python -m benchmarks.loop_pauses`: what stops the event loop of a store during a flush, and for how long.

At 10,000 events/s a flush has some thousand appends. Its two parts are measured apart. Packing runs on the loop: its
processor time is measured. The PUT runs in a thread that needs the interpreter, too: another process sends the time
over a socket each millisecond, and the loop says how late it reads it. Python's switch intervals take turns, also with
a time without a PUT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

import uvloop

from benchmarks.latencies import Latencies
from benchmarks.machine import machine_facts, versions
from benchmarks.pacing import paced_ns
from benchmarks.results import Results, document
from benchmarks.s3_double import running_s3_double
from benchmarks.upload_reads import CREDENTIALS
from headrace.adapters.s3.chunk_storage import S3ChunkStorage
from headrace.adapters.s3.client import s3_client
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.segment import AcceptedState, Segment
from headrace.segmentstore.tiering.object_uploads import pack
from segmentstore_fargate.__main__ import SWITCH_INTERVAL_S

APPENDS: Final = 4_000
APPEND_BYTES: Final = 5 << 10
OBJECT_BYTES_MAX: Final = 32 << 20
INTERVALS_S: Final = (0.005, SWITCH_INTERVAL_S, 0.0001)
STAMPS_PER_S: Final = 1_000
IDLE_S: Final = 0.1
_STAMP: Final = struct.Struct("<q")


def interleaved_segments(pool: BlockPool) -> list[Segment]:
    """Two segments whose appends came in turns, so that no two of one are next to each other in memory."""
    names = [f"benchmark/pauses/{number}.#epoch.0" for number in range(2)]
    segments = [Segment(number, name, pool, AcceptedState({}, 0)) for number, name in enumerate(names)]
    for number in range(APPENDS):
        for segment in segments:
            reservation = pool.reserve(APPEND_BYTES)
            assert reservation is not None
            segment.index.add(number * APPEND_BYTES, reservation, number)
            segment.durable.length += APPEND_BYTES
    return segments


def packing_ms(segment: Segment) -> float:
    """Processor time of packing the appends of one of them."""
    started_ns = time.thread_time_ns()
    packed = pack([segment], "object", OBJECT_BYTES_MAX, lambda _segment: 0, 1)
    taken_ns = time.thread_time_ns() - started_ns
    assert packed.length == APPENDS * APPEND_BYTES
    return taken_ns / 1e6


class Lateness:
    """How late the loop reads what another process writes each millisecond."""

    def __init__(self, reading: socket.socket) -> None:
        self._socket = reading
        self._late_ns: list[int] = []
        reading.setblocking(False)
        asyncio.get_running_loop().add_reader(reading, self._read)

    async def during(self, work: Awaitable[None]) -> Latencies:
        self._late_ns = []
        await work
        while not self._late_ns:  # at first the other process has not started yet
            await asyncio.sleep(1 / STAMPS_PER_S)
        return Latencies.of_ns(self._late_ns)

    def _read(self) -> None:
        data, now_ns = self._socket.recv(1 << 16), time.monotonic_ns()
        self._late_ns += [now_ns - stamp_ns for (stamp_ns,) in _STAMP.iter_unpack(data)]


@contextmanager
def _stamps() -> Iterator[socket.socket]:
    reading, writing = socket.socketpair()
    with reading, writing:
        command = [sys.executable, "-m", "benchmarks.loop_pauses", "--stamp", str(writing.fileno())]
        with subprocess.Popen(command, pass_fds=[writing.fileno()]) as process:
            try:
                yield reading
            finally:
                process.kill()


def _stamp(descriptor: int) -> None:
    """Write the time each millisecond, until the process is killed."""
    for _ in paced_ns(STAMPS_PER_S, sys.maxsize):
        os.write(descriptor, _STAMP.pack(time.monotonic_ns()))


async def measure(results: Results, rounds: int) -> None:
    pool = BlockPool(64 << 20)
    segments = interleaved_segments(pool)
    parts = pack([segments[0]], "object", OBJECT_BYTES_MAX, lambda _segment: 0, 1).parts
    storage = S3ChunkStorage("benchmark", s3_client())
    await storage.put("first", parts)
    loop_lateness: dict[str, list[float]] = {}
    with _stamps() as reading:
        lateness = Lateness(reading)
        await lateness.during(asyncio.sleep(0))
        for _ in range(rounds):
            results.add(f"packing {APPENDS:,} appends, processor", packing_ms(segments[0]), "ms")
            idle = await lateness.during(asyncio.sleep(IDLE_S))
            loop_lateness.setdefault("without a PUT", []).append(idle.max_ms)
            for interval_s in INTERVALS_S:
                sys.setswitchinterval(interval_s)
                found = await lateness.during(storage.put("object", parts))
                loop_lateness.setdefault(f"switch interval {interval_s * 1e3:g} ms", []).append(found.max_ms)
            sys.setswitchinterval(INTERVALS_S[0])
        asyncio.get_running_loop().remove_reader(reading)
    for name, longest_ms in loop_lateness.items():
        for value in longest_ms:
            results.add(f"longest pause of the loop during a PUT of {APPENDS:,} appends, {name}", value, "ms")
    assert all(statistics.median(longest_ms) > 0 for longest_ms in loop_lateness.values())
    storage.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_pauses", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for the results")
    parser.add_argument("--stamp", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stamp is not None:
        _stamp(options.stamp)
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    with running_s3_double("free") as url, mock.patch.dict(os.environ, CREDENTIALS | {"AWS_ENDPOINT_URL_S3": url}):
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(measure(results, options.rounds))
    settings = {"rounds": options.rounds, "appends": APPENDS, "append_bytes": APPEND_BYTES}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    (options.output / "loop-pauses.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
