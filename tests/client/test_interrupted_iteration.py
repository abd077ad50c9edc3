"""Loops over events that stop in the middle of a batch, and calls that are interrupted: the next call continues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from operator import methodcaller
from typing import Any, TypeVar

import httpx
import pytest
from real_cluster import WorkingQueue
from scripted_cluster import Cluster

from functions import wiring
from headrace.client import (
    AsyncHeadrace,
    ByteReader,
    ByteStream,
    EventReader,
    GroupReader,
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ScalingPolicy,
)

EVENTS = [f"event {number}".encode() for number in range(6)]


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With the events in one append to one segment, which readers get as one batch."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "returns", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "returns") as writer:
        writer.write_batch(EVENTS, ["key"] * len(EVENTS))
    return headrace


def some(reader: EventReader | GroupReader, count: int) -> list[bytes]:
    """The next events, by a loop that is left after them."""
    events: list[bytes] = []
    for read in reader:
        events.append(read.event)
        if len(events) == count:
            break
    return events


def by_batch(reader: EventReader | GroupReader) -> list[bytes]:
    batch = reader.read_batch(timeout_s=10)
    assert batch is not None
    return batch.events


def by_loop(reader: EventReader | GroupReader) -> list[bytes]:
    return some(reader, 4)


@pytest.mark.parametrize("rest", [by_loop, by_batch])
def test_reader_continues_after_a_break(headrace: Headrace, rest: Callable[[EventReader], list[bytes]]) -> None:
    with headrace.reader("shop", "returns", start="earliest") as reader:
        assert some(reader, 2) == EVENTS[:2]
        position = reader.position
        assert rest(reader) == EVENTS[2:]
        assert reader.read_batch(timeout_s=0.1) is None
    assert sum(position.offsets.values()) == sum(8 + len(event) for event in EVENTS[:2])


@pytest.mark.parametrize("rest", [by_loop, by_batch])
def test_group_continues_after_a_break(headrace: Headrace, rest: Callable[[GroupReader], list[bytes]]) -> None:
    reads = ReaderGroupConfiguration((GroupStream("shop", "returns"),), automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", "billing", reads)
    with headrace.reader_group("shop", "billing").reader("r1") as reader:
        assert some(reader, 2) == EVENTS[:2]
        assert rest(reader) == EVENTS[2:]
        assert reader.read_batch(timeout_s=0.1) is None


Reader = TypeVar("Reader", EventReader, GroupReader, ByteReader)


def interrupt(reader: Reader, call: Callable[[Reader], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a KeyboardInterrupt come when the result is there, but not with the caller yet."""
    run = reader._thread.run

    def interrupted(coroutine: Coroutine[Any, Any, Any]) -> None:
        assert run(coroutine) is not None
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(reader._thread, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(reader)


@pytest.mark.parametrize("kind", ["read_batch", "read_arrow_batch"])
def test_an_interrupted_call_loses_nothing(headrace: Headrace, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pytest.importorskip("pyarrow")
    with headrace.reader("shop", "returns", start="earliest") as reader:
        interrupt(reader, methodcaller(kind, timeout_s=10), monkeypatch)
        assert set(reader.position.offsets.values()) == {0}
        assert getattr(reader, kind)(timeout_s=10) is not None
        assert set(reader.position.offsets.values()) == {sum(8 + len(event) for event in EVENTS)}


@pytest.mark.parametrize("kind", ["read_batch", "read_arrow_batch"])
def test_an_interrupted_call_of_a_group_processes_nothing(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("pyarrow")
    reads = ReaderGroupConfiguration((GroupStream("shop", "returns"),), automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", "billing", reads)
    with headrace.reader_group("shop", "billing").reader("r1") as reader:
        interrupt(reader, methodcaller(kind, timeout_s=10), monkeypatch)
    with headrace.reader_group("shop", "billing").reader("r2") as reader:
        interrupt(reader, methodcaller(kind, timeout_s=10), monkeypatch)
        assert getattr(reader, kind)(timeout_s=10) is not None
        assert getattr(reader, kind)(timeout_s=0.1) is None


def _read_into(reader: ByteReader) -> bytes:
    buffer = bytearray(4)
    return bytes(buffer[: reader.readinto(buffer)])


@pytest.fixture
def digits(headrace: Headrace) -> ByteStream:
    headrace.admin.create_stream("shop", "digits", scaling=ScalingPolicy.fixed(1))
    stream = headrace.byte_stream("shop", "digits")
    with stream.writer() as writer:
        writer.write(b"0123456789")
        writer.close_and_seal()
    return stream


@pytest.mark.parametrize("read", [methodcaller("read", 4), ByteReader.read, _read_into], ids=["some", "all", "into"])
@pytest.mark.parametrize("start", [0, 2])
def test_an_interrupted_call_loses_no_bytes(
    digits: ByteStream, monkeypatch: pytest.MonkeyPatch, read: Callable[[ByteReader], bytes], start: int
) -> None:
    with digits.reader() as reader:
        assert len(reader.read(start)) == start
        for _ in range(2):
            interrupt(reader, read, monkeypatch)
            assert (reader.tell(), reader.available()) == (start, 10 - start)
        found = read(reader)
        assert reader.tell() == start + len(found)
        assert found + reader.read() == b"0123456789"[start:]
        assert (reader.tell(), reader.read(), reader.read(1)) == (10, b"", b"")


def test_seeks_after_an_interrupted_call(digits: ByteStream, monkeypatch: pytest.MonkeyPatch) -> None:
    with digits.reader(2) as reader:
        interrupt(reader, ByteReader.read, monkeypatch)
        assert (reader.seek(1, os.SEEK_CUR), reader.read(2)) == (3, b"34")
        interrupt(reader, ByteReader.read, monkeypatch)
        assert (reader.seek(0), reader.read()) == (0, b"0123456789")


def test_asynchronous_reader_continues_after_a_break(cluster: Cluster) -> None:
    """Leaving such a loop does not close its generator at once."""

    async def read() -> list[bytes]:
        events: list[bytes] = []
        transport = httpx.MockTransport(cluster.handle)
        async with (
            AsyncHeadrace("http://controller", transport=transport) as headrace,
            await headrace.reader("s", "t", start="earliest") as reader,
        ):
            while len(events) < len(EVENTS):
                async for event in reader:
                    events.append(event.event)
                    break
        return events

    cluster.put(0, *EVENTS)
    assert asyncio.run(read()) == EVENTS
