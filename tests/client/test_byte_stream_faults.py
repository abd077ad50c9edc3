"""Byte streams whose store is killed, whose connections are lost, and whose answers do not arrive."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from real_cluster import RealCluster
from scripted_cluster import Cluster

from headrace import wire
from headrace.client import (
    AsyncHeadrace,
    ByteStream,
    ConflictError,
    Headrace,
    HeadraceError,
    IllegalStateError,
    ScalingPolicy,
    UnavailableError,
)
from headrace.client.writing.segment_appender import SegmentAppender

MIB = 1024 * 1024


@pytest.fixture
def video(headrace: Headrace) -> ByteStream:
    headrace.admin.create_stream("shop", "video", scaling=ScalingPolicy.fixed(1))
    return headrace.byte_stream("shop", "video")


def stored(stream: ByteStream) -> bytes:
    with stream.reader() as reader:
        left, found = reader.available(), bytearray()
        while len(found) < left:
            found += reader.read(left - len(found))
        return bytes(found)


class Faults:
    """Does something each time a writer has sent a block and before the store can answer it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: Callable[[SegmentAppender], None], times: int) -> None:
        self.left = times
        send = SegmentAppender._send_block

        def send_block(appender: SegmentAppender, flow: Any, block: Any) -> None:
            send(appender, flow, block)
            if self.left:
                self.left -= 1
                fault(appender)

        monkeypatch.setattr(SegmentAppender, "_send_block", send_block)


def lose_connection(appender: SegmentAppender) -> None:
    assert appender._flow is not None
    asyncio.get_running_loop().call_soon(appender._flow.connection.close)


def lose_connection_after_sending(appender: SegmentAppender) -> None:
    """The bytes reach the store, and its answer does not reach the writer."""
    assert appender._flow is not None
    transport = appender._flow.connection._transport
    assert transport is not None
    asyncio.get_running_loop().call_soon(transport.close)  # sends what is in its buffer first


@pytest.mark.parametrize("expected", [None, 0])
@pytest.mark.parametrize("fault", [lose_connection, lose_connection_after_sending])
def test_lost_connections_double_and_lose_no_byte(
    video: ByteStream, monkeypatch: pytest.MonkeyPatch, expected: int | None, fault: Callable[[SegmentAppender], None]
) -> None:
    data = random.Random(3).randbytes(12 * MIB)
    faults = Faults(monkeypatch, fault, times=3)
    with video.writer(expected_offset=expected) as writer:
        for first in range(0, len(data), MIB // 2):
            writer.write(data[first : first + MIB // 2])
    assert faults.left == 0
    assert stored(video) == data


@pytest.mark.parametrize("expected", [None, 0])
def test_answers_that_are_lost_with_the_connection(
    video: ByteStream, real: RealCluster, monkeypatch: pytest.MonkeyPatch, expected: int | None
) -> None:
    """The store has the bytes and drops the connection instead of its answer: the set-up tells that they are stored."""
    lost: list[int] = []
    original = SegmentAppender.replied

    def replied(appender: SegmentAppender, reply: wire.WireCommand) -> None:
        if isinstance(reply, wire.DataAppended) and len(lost) < 3:
            lost.append(reply.event_number)
            lose_connection(appender)
            return
        original(appender, reply)

    monkeypatch.setattr(SegmentAppender, "replied", replied)
    with video.writer(expected_offset=expected) as writer:
        for number in range(6):
            writer.write(b"%d" % number * 1000)
            writer.flush()
    assert len(lost) == 3
    assert stored(video) == b"".join(b"%d" % number * 1000 for number in range(6))


@pytest.mark.parametrize("expected", [None, 0])
def test_store_killed_in_the_middle_of_writes(video: ByteStream, real: RealCluster, expected: int | None) -> None:
    data = random.Random(4).randbytes(16 * MIB)
    with video.writer(expected_offset=expected, buffer_bytes=2 * MIB) as writer:
        writing = threading.Thread(target=writer.write, args=(data,))
        writing.start()
        for part in (1, 5, 10):
            while video.tail_offset() < part * MIB:
                pass
            real.kill_store()
            real.start_store()
        writing.join()
    assert stored(video) == data


def test_reader_continues_after_its_store_was_killed(video: ByteStream, real: RealCluster) -> None:
    data = random.Random(5).randbytes(9 * MIB)
    with video.writer() as writer, video.reader() as reader:
        found = bytearray()
        for first in range(0, len(data), 3 * MIB):
            writer.write(data[first : first + 3 * MIB])
            while len(found) < first + 3 * MIB - 10:  # the reader has bytes in advance when its store is killed
                found += reader.read(100_000)
            real.kill_store()
            real.start_store()
        writer.close_and_seal()
        found += reader.read()
    assert found == data


def test_store_that_stays_away(video: ByteStream, real: RealCluster) -> None:
    reader, writer = video.reader(give_up_after_s=0.05), video.writer(give_up_after_s=0.05)
    real.kill_store()
    with pytest.raises(UnavailableError):
        reader.read(1)
    writer.write(b"unknown")
    with pytest.raises(UnavailableError):
        writer.close()
    real.start_store()
    with video.writer() as another:
        another.write(b"back")
    assert reader.read(7) == b"back"


def test_writers_at_once_mix_blocks_and_lose_none(video: ByteStream, headrace: Headrace, real: RealCluster) -> None:
    """Each writes records that are smaller than a block, and flushes each. None is divided, none is there twice."""

    def write(name: int) -> None:
        with headrace.byte_stream("shop", "video").writer() as writer:
            for number in range(40):
                writer.write(b"%d%02d." % (name, number) * 250)
                writer.flush()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for tail in (20_000, 80_000):
        while video.tail_offset() < tail:
            pass
        real.drop_connections()
    for thread in threads:
        thread.join()
    data = stored(video)
    records = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    assert all(record == record[:4] * 250 for record in records)
    for name in range(4):
        mine = [record[:4] for record in records if record[:1] == b"%d" % name]
        assert mine == [b"%d%02d." % (name, number) for number in range(40)]


def test_writer_overtaken_while_it_reconnects(
    video: ByteStream, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append does not reach the store, and another writer appends before it is sent again."""
    send, converse = SegmentAppender._send_block, SegmentAppender._converse
    writer, other = video.writer(expected_offset=0), headrace.byte_stream("shop", "video").writer()
    unsent: list[Any] = []

    def send_block(appender: SegmentAppender, flow: Any, block: Any) -> None:
        if appender is writer._core._appender and not unsent:
            unsent.append(block)
            lose_connection(appender)
        else:
            send(appender, flow, block)

    async def converse_later(appender: SegmentAppender) -> HeadraceError:
        if appender is writer._core._appender and unsent:
            await asyncio.to_thread(other.write, b"other")
            await asyncio.to_thread(other.flush)
        return await converse(appender)

    writer.write(b"first")
    writer.flush()
    monkeypatch.setattr(SegmentAppender, "_send_block", send_block)
    monkeypatch.setattr(SegmentAppender, "_converse", converse_later)
    writer.write(b"mine!")
    with pytest.raises(ConflictError, match="does not end at offset 5"):
        writer.close()
    assert len(unsent) == 1
    assert stored(video) == b"firstother"


def test_cancelled_seek_keeps_the_position(video: ByteStream, headrace: Headrace) -> None:
    """The reader has requested windows in advance; what is left of them is not at the position."""
    data = random.Random(6).randbytes(8 * MIB)
    with video.writer() as writer:
        writer.write(data)

    async def read(client: AsyncHeadrace, turns: int) -> bytes:
        async with await client.byte_stream("shop", "video") as stream, await stream.reader() as reader:
            assert await reader.read(100) == data[:100]
            while not reader._arrived.full():
                await asyncio.sleep(0)
            seeking = asyncio.create_task(reader.seek(6 * MIB))
            for _ in range(turns):
                await asyncio.sleep(0)
            seeking.cancel()
            await asyncio.gather(seeking, return_exceptions=True)
            position = await reader.tell()
            found = await reader.read(100)
            assert found == data[position : position + len(found)]
            return found

    for turns in range(5):
        assert headrace._thread.run(read(headrace._core, turns))


def test_closed_readers_and_writers_open_no_connection(video: ByteStream) -> None:
    with video.writer() as writer, video.reader() as reader:
        writer.write(b"all")
        writer.flush()
        assert (writer.tail_offset(), reader.available()) == (3, 3)
    for call in (reader.available, reader.tail_offset, lambda: reader.seek(0, os.SEEK_END), writer.tail_offset):
        with pytest.raises(IllegalStateError):
            call()
    assert not reader._core._segment.connections._tasks
    assert not writer._core._segment.connections._tasks
    assert video.tail_offset() == 3


@pytest.mark.anyio
async def test_bytes_fail_although_discarding_is_cancelled(make_cluster: Callable[[int], Cluster]) -> None:
    cluster = make_cluster(1)
    client = AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle))
    async with client, await client.byte_stream("s", "t") as stream:
        writer = await stream.writer()
        cluster.stop_store()
        await writer.write(b"bytes")
        await asyncio.sleep(0)
        discarding = asyncio.create_task(writer.discard())
        await asyncio.sleep(0)
        discarding.cancel()
        await asyncio.wait({discarding})
        assert writer.accumulator.is_empty()
        assert writer._segment.connections._is_closed
