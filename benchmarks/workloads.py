"""What is asked of Headrace, through its public client only: bursts, a steady pace, catching up."""

from __future__ import annotations

import gc
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice

import httpx

from benchmarks.latencies import Latencies
from benchmarks.pacing import paced_ns
from benchmarks.settings import AppendLoad, PacedLoad, Settings
from headrace.client import Ack, Headrace, ScalingPolicy

SCOPE = "benchmark"
STAMP = struct.Struct("<q")
"""The first bytes of a paced event: when it was due, by the monotonic clock that all processes of a machine share."""

CHUNKS_PER_PAGE = 1000
TIER2_POLL_S = 0.1
SEGMENTS_ASKED_MAX = 16


class WrongResultError(RuntimeError):
    """What was read is not what was written: no figure is worth anything."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Payload bytes and events per second."""

    events_per_s: float
    mb_per_s: float

    @classmethod
    def of(cls, load: AppendLoad, seconds: float) -> Throughput:
        return cls(load.events / seconds, load.events * load.event_bytes / seconds / 1e6)


@dataclass(frozen=True, slots=True)
class PacedLatencies:
    """From the moment an event was due: until its acknowledgement, and until a reader had it."""

    acknowledged: Latencies
    delivered: Latencies


def make_stream(headrace: Headrace, stream: str, segments: int) -> None:
    headrace.admin.create_scope(SCOPE, exist_ok=True)
    headrace.admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(segments))


def append_burst(headrace: Headrace, stream: str, load: AppendLoad, settings: Settings) -> Throughput:
    """Writes the load in batches from this thread; the time ends with the last acknowledgement."""
    event = os.urandom(load.event_bytes)
    events = [event] * settings.batch_events
    keys = [f"key-{number % settings.routing_keys}" for number in range(settings.batch_events)]
    with headrace.writer(SCOPE, stream) as writer:
        started_s = time.perf_counter()
        left = load.events
        while left:
            count = min(left, settings.batch_events)
            writer.write_batch(events[:count], keys[:count])
            left -= count
        writer.flush()
        return Throughput.of(load, time.perf_counter() - started_s)


def warm_up(headrace: Headrace, settings: Settings, stream: str = "warm-up") -> None:
    """Write to the memory of cache, log and client once. A page that is touched for the first time costs milliseconds
    a MiB on a virtual machine, and would hide everything else."""
    make_stream(headrace, stream, settings.segments)
    append_burst(headrace, stream, settings.warm_up, settings)
    await_tier2(headrace, stream, settings)


def append_one_by_one(headrace: Headrace, stream: str, load: AppendLoad, settings: Settings) -> Throughput:
    """Writes the load with one call an event."""
    event = os.urandom(load.event_bytes)
    keys = routing_keys(settings)
    with headrace.writer(SCOPE, stream) as writer:
        write = writer.write
        started_s = time.perf_counter()
        for number in range(load.events):
            write(event, keys[number % len(keys)])
        writer.flush()
        return Throughput.of(load, time.perf_counter() - started_s)


def routing_keys(settings: Settings) -> list[str]:
    return [f"key-{number}" for number in range(settings.routing_keys)]


class _Group:
    """Events that share one acknowledgement: when each was due, and when it came."""

    __slots__ = ("done_ns", "due_ns")

    def __init__(self) -> None:
        self.due_ns: list[int] = []
        self.done_ns = 0

    def done(self, _: Ack) -> None:
        self.done_ns = time.monotonic_ns()


def paced_writes(headrace: Headrace, url: str, stream: str, load: PacedLoad, settings: Settings) -> PacedLatencies:
    """Writes event after event at the moments they are due, while another process reads at the tail."""
    with tail_reader(url, stream, int(load.rate_per_s * load.seconds)) as reader:
        acknowledged = paced_acknowledgements(headrace, stream, load, settings)
        said = reader.stdout.readline() if reader.stdout else ""
    if not said:
        raise WrongResultError("the tail reader ended without a result")
    return PacedLatencies(acknowledged, Latencies(**json.loads(said)))


def paced_acknowledgements(headrace: Headrace, stream: str, load: PacedLoad, settings: Settings) -> Latencies:
    """Writes event after event at the moments they are due.

    Latencies count from the due time, not from the call: a writer that falls behind does not hide it.
    """
    total = int(load.rate_per_s * load.seconds)
    with headrace.writer(SCOPE, stream) as writer:
        for key in routing_keys(settings):  # set-up of connections and writers is no latency of an event
            writer.write(bytes(load.event_bytes), key)
        writer.flush()
        # What is kept for the figures makes full collections slow, and they would count as latency of the writer.
        gc.disable()
        try:
            groups = _write_paced(writer.write, load, total, settings)
            writer.flush()
        finally:
            gc.enable()
    acknowledged = Latencies.of_ns(group.done_ns - due_ns for group in groups for due_ns in group.due_ns)
    if acknowledged.count != total:
        raise WrongResultError(f"{acknowledged.count} of {total} events were acknowledged")
    return acknowledged


def _write_paced(write: object, load: PacedLoad, total: int, settings: Settings) -> list[_Group]:
    assert callable(write)
    rest = os.urandom(load.event_bytes - STAMP.size)
    keys = routing_keys(settings)
    groups: dict[Ack, _Group] = {}
    for number, due_ns in enumerate(paced_ns(load.rate_per_s, total)):
        ack = write(STAMP.pack(due_ns) + rest, keys[number % len(keys)])
        group = groups.get(ack)
        if group is None:
            group = groups[ack] = _Group()
            ack.add_done_callback(group.done)
        group.due_ns.append(due_ns)
    return list(groups.values())


def tail_reader(url: str, stream: str, events: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that reads `events` events from the tail on."""
    return _helper_process("benchmarks.tail_reader", url, SCOPE, stream, str(events))


def catch_up_reader(url: str, stream: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that reads the stream from head to tail, again and again."""
    return _helper_process("benchmarks.catch_up_reader", url, SCOPE, stream)


@contextmanager
def _helper_process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """It has said `ready`, and ends with the block."""
    with subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise WrongResultError(f"{module} did not start")
            yield process
        finally:
            process.terminate()


def catch_up_from_store(headrace: Headrace, stream: str, load: AppendLoad) -> Throughput:
    """Reads the stream from head to tail through the segment store, parsed into events."""
    tail = headrace.admin.stream_cut(SCOPE, stream, at="latest")
    count = 0
    with headrace.reader(SCOPE, stream, start="earliest", end=tail) as reader:
        started_s = time.perf_counter()
        while (batch := reader.read_batch()) is not None:
            count += len(batch.events)
        elapsed_s = time.perf_counter() - started_s
    if count != load.events:
        raise WrongResultError(f"read {count} of {load.events} events")
    return Throughput.of(load, elapsed_s)


def await_tier2(headrace: Headrace, stream: str, settings: Settings) -> float:
    """Seconds until everything in the stream now is in tier 2, as far as some of its segments tell."""
    started_s = time.perf_counter()
    lengths = headrace.admin.stream_cut(SCOPE, stream, at="latest").offsets
    for segment_id, length in islice(lengths.items(), SEGMENTS_ASKED_MAX):
        stored = 0
        while stored < length:
            page = headrace.admin.chunks(SCOPE, stream, segment_id, from_offset=stored, to_offset=length)
            stored = page.stored_until
            if time.perf_counter() - started_s > settings.tier2_patience_s:
                raise WrongResultError(f"segment {segment_id} is in tier 2 up to {stored} of {length} bytes only")
            if page.next_offset is None and stored < length:
                time.sleep(TIER2_POLL_S)
    return time.perf_counter() - started_s


def catch_up_from_s3(headrace: Headrace, stream: str, load: AppendLoad, settings: Settings) -> Throughput:
    """Asks the controller for links and reads the chunks straight from S3, as Spark does; bytes are not parsed."""
    lengths = headrace.admin.stream_cut(SCOPE, stream, at="latest").offsets
    started_s = time.perf_counter()
    with httpx.Client() as http, ThreadPoolExecutor(settings.history_threads) as threads:

        def fetch(link: tuple[str, dict[str, str], int]) -> int:
            url, headers, length = link
            content = http.get(url, headers=headers).raise_for_status().content
            if len(content) != length:
                raise WrongResultError(f"a link to {length} bytes returned {len(content)}")
            return len(content)

        # Chunks are fetched while the next links are asked for.
        links = (link for segment, length in lengths.items() for link in _links(headrace, stream, segment, length))
        received = sum(threads.map(fetch, links))
    elapsed_s = time.perf_counter() - started_s
    if received != sum(lengths.values()):
        raise WrongResultError(f"S3 returned {received} of {sum(lengths.values())} bytes")
    return Throughput.of(load, elapsed_s)


def _links(headrace: Headrace, stream: str, segment_id: int, length: int) -> Iterator[tuple[str, dict[str, str], int]]:
    at: int | None = 0
    while at is not None and at < length:
        page = headrace.admin.chunks(SCOPE, stream, segment_id, from_offset=at, to_offset=length, limit=CHUNKS_PER_PAGE)
        for chunk in page.chunks:
            yield chunk.url, dict(chunk.headers), chunk.length
        at = page.next_offset
