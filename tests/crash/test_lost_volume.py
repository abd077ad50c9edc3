"""A real process is replaced by one with an empty volume: SIGTERM loses nothing, kill -9 no more than the tail."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from headrace import wire

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(4)]  # in several containers
WRITER = 9


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        connection = cls(*await asyncio.open_connection("127.0.0.1", port))
        assert await connection.call(wire.Hello(17, 5)) == wire.Hello(17, 5)
        return connection

    async def call(self, command: wire.WireCommand) -> wire.WireCommand:
        self._writer.write(wire.encode(command))
        type_code, length = wire.decode_header(await asyncio.wait_for(self._reader.readexactly(8), WAIT_S))
        return wire.decode(type_code, memoryview(await asyncio.wait_for(self._reader.readexactly(length), WAIT_S)))

    async def set_up(self, segment: str) -> int:
        reply = await self.call(wire.SetupAppend(1, WRITER, segment))
        assert isinstance(reply, wire.AppendSetup), reply
        return reply.last_event_number

    async def append(self, segment: str, numbers: range) -> None:
        for number in numbers:
            data = event(segment, number)
            reply = await self.call(wire.AppendBlockEnd(WRITER, len(data), data, 1, number, 2))
            assert isinstance(reply, wire.DataAppended), reply

    async def read_all(self, segment: str) -> bytes:
        info = await self.call(wire.GetStreamSegmentInfo(3, segment))
        assert isinstance(info, wire.StreamSegmentInfo), info
        data = b""
        while len(data) < info.write_offset:
            reply = await self.call(wire.ReadSegment(segment, len(data), 1 << 20, "", 4))
            assert isinstance(reply, wire.SegmentRead), reply
            data += reply.data
        return data

    def close(self) -> None:
        self._writer.close()


def event(segment: str, number: int) -> bytes:
    return f"{segment} event {number:06d};".encode()


def events(segment: str, count: int) -> bytes:
    return b"".join(event(segment, number) for number in range(count))


async def test_store_is_replaced_without_loss_after_a_clean_shutdown(make_store, tmp_path: Path) -> None:
    store = make_store(flush_age_s=3600)  # all of it reaches tier 2 at the stop
    store.start()
    await _fill(store.port, 50)
    assert store.stop() == 0
    shutil.rmtree(tmp_path / "data")
    store.start()
    await _go_on(store.port, 50, exact=True)
    assert store.stop() == 0


async def test_a_store_that_was_lost_is_replaced_with_what_tier_2_has(make_store, tmp_path: Path) -> None:
    store = make_store(flush_age_s=0)
    store.start()
    await _fill(store.port, 50)
    assert store.stop() == 0
    store.start()  # on its volume: from here on it is killed with a snapshot that is not the last word
    await _append_more(store.port, 50, 60)
    store.kill()
    shutil.rmtree(tmp_path / "data")
    store.start()
    await _go_on(store.port, 60, exact=False)
    assert store.stop() == 0


async def _fill(port: int, count: int) -> None:
    connection = await Connection.open(port)
    for segment in SEGMENTS:
        assert await connection.call(wire.CreateSegment(5, segment, 0, 0)) == wire.SegmentCreated(5, segment)
        await connection.set_up(segment)
        await connection.append(segment, range(count))
    sealed = await connection.call(wire.SealSegment(6, SEGMENTS[-1]))
    assert isinstance(sealed, wire.SegmentSealed), sealed
    connection.close()


async def _append_more(port: int, first: int, count: int) -> None:
    connection = await Connection.open(port)
    for segment in SEGMENTS[:-1]:
        assert await connection.set_up(segment) == first - 1
        await connection.append(segment, range(first, count))
    connection.close()


async def _go_on(port: int, count: int, *, exact: bool) -> None:
    """A writer that holds the events from its answer on loses none; after an exact stop there is nothing to resend."""
    connection = await Connection.open(port)
    for segment in SEGMENTS[:-1]:
        stored = await connection.set_up(segment) + 1
        found = await connection.read_all(segment)
        assert found.startswith(events(segment, stored))
        assert stored == count if exact else 50 <= stored <= count
        await connection.append(segment, range(stored, count + 1))
        assert (await connection.read_all(segment)).endswith(event(segment, count))
        if exact:
            assert await connection.read_all(segment) == events(segment, count + 1)
    info = await connection.call(wire.GetStreamSegmentInfo(7, SEGMENTS[-1]))
    assert isinstance(info, wire.StreamSegmentInfo), info
    assert info.is_sealed
    assert await connection.read_all(SEGMENTS[-1]) == events(SEGMENTS[-1], 50)
    connection.close()
