"""A KeyboardInterrupt anywhere in a read of the synchronous client: no event is lost, and none comes twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from keyboard_interrupts import is_interrupted
from real_cluster import RealCluster, WorkingQueue

from functions import wiring
from headrace.client import (
    ByteReader,
    EventReader,
    GroupReader,
    GroupStream,
    Headrace,
    RangeReader,
    ReaderGroupConfiguration,
    ScalingPolicy,
)
from headrace.client.groups import group_reader
from headrace.client.ranges import range_reader
from headrace.client.reading import event_reader, read_progress
from headrace.client.single_segment import byte_stream
from headrace.client.synchronous import synchronous_bases, synchronous_group_reader

EVENTS = [f"event {number}".encode() for number in range(4)]
BYTES = b"0123456789"

MODULES = (
    byte_stream,
    event_reader,
    group_reader,
    range_reader,
    read_progress,
    synchronous_bases,
    synchronous_group_reader,
)
"""Without `loop_thread`: a result that is lost there is returned again, see `test_interrupted_iteration`."""

Reader = EventReader | GroupReader | RangeReader


@pytest.fixture
def headrace(
    headrace: Headrace, real: RealCluster, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch
) -> Headrace:
    """With the events in one append to one segment, which readers get as one batch, and with bytes. Both end."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    for name in ("returns", "digits"):
        headrace.admin.create_stream("shop", name, scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "returns") as writer:
        writer.write_batch(EVENTS, ["key"] * len(EVENTS))
    headrace.admin.seal_stream("shop", "returns")
    with headrace.byte_stream("shop", "digits").writer() as byte_writer:
        byte_writer.write(BYTES)
        byte_writer.close_and_seal()
    return headrace


def _reader(headrace: Headrace) -> EventReader:
    return headrace.reader("shop", "returns", start="earliest")


def _group_reader(headrace: Headrace) -> GroupReader:
    name = f"group-{uuid4()}"
    reads = ReaderGroupConfiguration((GroupStream("shop", "returns"),), automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", name, reads)
    with headrace.reader_group("shop", name) as group:
        return group.reader()


def _range_reader(headrace: Headrace) -> RangeReader:
    (part,) = headrace.segment_ranges("shop", "returns")
    return headrace.range_reader(part)


def _by_batch(reader: Reader) -> Iterator[bytes]:
    if (batch := reader.read_batch()) is not None:
        yield from batch.events


def _by_arrow_batch(reader: Reader) -> Iterator[bytes]:
    if (batch := reader.read_arrow_batch()) is not None:
        yield from batch["event"].to_pylist()


def _by_loop(reader: Reader) -> Iterator[bytes]:
    for read in reader:
        yield read.event


def _note(events: Iterator[bytes], found: list[bytes]) -> None:
    """Adds what the caller gets of the events to a list."""
    for event in events:
        found += (event,)


@pytest.mark.parametrize("read", [_by_batch, _by_arrow_batch, _by_loop])
@pytest.mark.parametrize("opened", [_reader, _group_reader, _range_reader])
def test_interrupted_read_loses_no_event(
    headrace: Headrace, opened: Callable[[Headrace], Reader], read: Callable[[Reader], Iterator[bytes]]
) -> None:
    pytest.importorskip("pyarrow")
    for at in count():
        with opened(headrace) as reader:
            found: list[bytes] = []
            was_interrupted = is_interrupted(partial(_note, read(reader), found), at, *MODULES)
            if len(found) < len(EVENTS):
                _note(read(reader), found)
            assert found == EVENTS, f"at place {at}"
        if not was_interrupted:
            break


def _by_read(reader: ByteReader, found: bytearray) -> None:
    while data := reader.read(4):
        found += data


def _by_read_into(reader: ByteReader, found: bytearray) -> None:
    buffer = bytearray(4)
    while size := reader.readinto(buffer):
        found += buffer[:size]


def _by_read_of_all(reader: ByteReader, found: bytearray) -> None:
    data = reader.read()
    found += data


@pytest.mark.parametrize("read", [_by_read, _by_read_into, _by_read_of_all])
def test_interrupted_read_loses_no_byte(headrace: Headrace, read: Callable[[ByteReader, bytearray], None]) -> None:
    stream = headrace.byte_stream("shop", "digits")
    for at in count():
        with stream.reader() as reader:
            data = bytearray()
            was_interrupted = is_interrupted(partial(read, reader, data), at, *MODULES)
            read(reader, data)
            assert data == BYTES, f"at place {at}"
            assert reader.tell() == len(BYTES)
        if not was_interrupted:
            break


class OvertakenLock:
    """A lock that is released for the first time to another thread, which has used it before the first one goes on."""

    def __init__(self, use: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._use = use
        self._is_overtaken = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        if not self._is_overtaken:
            self._is_overtaken = True
            other = threading.Thread(target=self._use)
            other.start()
            other.join()


def test_overtaken_read_of_bytes_takes_the_next_ones(headrace: Headrace) -> None:
    found: list[bytes] = []
    with headrace.byte_stream("shop", "digits").reader() as reader:
        reader._turn = OvertakenLock(lambda: found.append(reader.read(4)))  # type: ignore[assignment]
        found.append(reader.read(2))
        assert found == [b"0123", b"45"]
        assert (reader.read(), reader.tell()) == (b"6789", 10)


def test_overtaken_read_of_all_bytes_takes_the_rest(headrace: Headrace) -> None:
    found: list[bytes] = []
    with headrace.byte_stream("shop", "digits").reader() as reader:
        reader._turn = OvertakenLock(lambda: found.append(reader.read(4)))  # type: ignore[assignment]
        found.append(reader.read())
        assert found == [b"0123", b"456789"]
        assert reader.read() == b""


def test_overtaken_read_of_a_range_takes_the_next_batch(headrace: Headrace) -> None:
    found: list[Any] = []
    with _range_reader(headrace) as reader:
        reader._turn = OvertakenLock(lambda: found.append(reader.read_batch()))  # type: ignore[assignment]
        found.append(reader.read_batch())
        assert found[0].events == EVENTS
        assert found[1] is None
