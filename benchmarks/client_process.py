"""One client at work in a process of its own, whose processor time can be told from all others.

`python -m benchmarks.client_process KIND CONTROLLER STREAM EVENT_BYTES EVENTS WRITERS` writes, or reads if KIND is a
kind of reading, and prints one line of JSON: `seconds` and `processor_s` from the first call until the last event is
acknowledged or read. What is written before, one event per writer, opens the connections. CONTROLLER is a URL for our
client, and an address as `tcp://host:port` for Pravega's.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.settings import AppendLoad
from benchmarks.workloads import SCOPE, WrongResultError
from headrace.client import EventReader, connect
from headrace.client.reading.event_reader import arrow_assembler

KEYS = [f"key-{number}" for number in range(1000)]
BATCH_EVENTS = 2_000
COLUMN_EVENTS = 50_000
WAIT_FOR_EVENTS_S = 60.0

Report = dict[str, float]
Work = Callable[[], None]


def timed(work: Work) -> Report:
    """The wall-clock time and the processor time of all threads of this process, in seconds."""
    gc.collect()
    gc.disable()
    started_s, processor_before_s = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - started_s, "processor_s": time.process_time() - processor_before_s}


def write_ours(kind: str, url: str, stream: str, load: AppendLoad, writers: int) -> Report:
    with connect(url) as headrace, ExitStack() as opened:
        all_writers = [opened.enter_context(headrace.writer(SCOPE, stream)) for _ in range(writers)]
        for writer in all_writers:
            writer.write(bytes(load.event_bytes), KEYS[0])
        for writer in all_writers:
            writer.flush()
        return timed(_OURS[kind](all_writers, load))


def _one_by_one(writers: list[Any], load: AppendLoad) -> Work:
    event = os.urandom(load.event_bytes)

    def work() -> None:
        for number in range(load.events):
            writers[number % len(writers)].write(event, KEYS[number % len(KEYS)])
        _flush(writers)

    return work


def _batches(writers: list[Any], load: AppendLoad) -> Work:
    size = min(BATCH_EVENTS, load.events // len(writers))
    events = [os.urandom(load.event_bytes)] * size
    keys = [KEYS[number % len(KEYS)] for number in range(size)]

    def work() -> None:
        for number, first in enumerate(range(0, load.events, size)):
            count = min(size, load.events - first)
            writers[number % len(writers)].write_batch(events[:count], keys[:count])
        _flush(writers)

    return work


def _columns(writers: list[Any], load: AppendLoad) -> Work:
    import pyarrow as pa

    size = min(COLUMN_EVENTS, load.events // len(writers))
    data = os.urandom(load.event_bytes)
    events = pa.array([data] * size, pa.large_binary())
    keys = pa.array([KEYS[number % len(KEYS)] for number in range(size)])

    def work() -> None:
        for number, first in enumerate(range(0, load.events, size)):
            count = min(size, load.events - first)
            writers[number % len(writers)].write_many(events[:count], keys[:count])
        _flush(writers)

    return work


def _flush(writers: list[Any]) -> None:
    for writer in writers:
        writer.flush()


_OURS: dict[str, Callable[[list[Any], AppendLoad], Work]] = {
    "ours, one by one": _one_by_one,
    "ours, batches": _batches,
    "ours, Arrow": _columns,
}


def write_theirs(controller: str, stream: str, load: AppendLoad, writers: int) -> Report:
    """Its only call takes one event."""
    import pravega_client

    manager = pravega_client.StreamManager(controller)
    all_writers = [manager.create_writer(SCOPE, stream) for _ in range(writers)]
    event = os.urandom(load.event_bytes)
    for writer in all_writers:
        writer.write_event_bytes(event, KEYS[0])
    _flush(all_writers)

    def work() -> None:
        for number in range(load.events):
            all_writers[number % writers].write_event_bytes(event, KEYS[number % len(KEYS)])
        _flush(all_writers)

    return timed(work)


def read_ours(kind: str, url: str, stream: str, load: AppendLoad) -> Report:
    """A reader up to the tail. As with the package, what it needs is imported, and the reader is open, before."""
    with connect(url) as headrace:
        tail = headrace.admin.stream_cut(SCOPE, stream, at="latest")
        arrow_assembler()
        with headrace.reader(SCOPE, stream, end=tail) as reader:
            return timed(lambda: _check(load, _READS[kind](reader)))


def _read_batches(reader: EventReader) -> int:
    count = 0
    while (batch := reader.read_batch()) is not None:
        count += len(batch.events)
    return count


def _read_columns(reader: EventReader) -> int:
    return sum(batch.num_rows for batch in reader.arrow_batches())


_READS: dict[str, Callable[[EventReader], int]] = {
    "read, ours, batches": _read_batches,
    "read, ours, Arrow": _read_columns,
}


def read_theirs(controller: str, stream: str, load: AppendLoad) -> Report:
    """One reader of a group, slice by slice, event by event, as its documentation shows."""
    import pravega_client

    manager = pravega_client.StreamManager(controller)
    reader = manager.create_reader_group(f"group-{stream}", SCOPE, stream).create_reader("reader")

    async def read() -> int:
        count = 0
        while count < load.events:
            async with asyncio.timeout(WAIT_FOR_EVENTS_S):
                found = await reader.get_segment_slice_async()
            if found is not None:
                count += sum(1 for event in found if event.data())
                reader.release_segment(found)
        return count

    return timed(lambda: _check(load, asyncio.run(read())))


def _check(load: AppendLoad, count: int) -> None:
    """The stream also has the event that opened the connection, so it is not counted exactly."""
    if count < load.events:
        raise WrongResultError(f"read {count} of {load.events} events")


def main(kind: str, controller: str, stream: str, event_bytes: int, events: int, writers: int) -> Report:
    """Do what `kind` names; see the keys of the tables above."""
    load = AppendLoad(event_bytes, events)
    if kind == "theirs":
        return write_theirs(controller, stream, load, writers)
    if kind == "read, theirs":
        return read_theirs(controller, stream, load)
    if kind in _READS:
        return read_ours(kind, controller, stream, load)
    return write_ours(kind, controller, stream, load, writers)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the native threads of Pravega's client are no reason to wait
