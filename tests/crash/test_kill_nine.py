"""kill -9 at random moments under several writers: what was acknowledged is there, in order, once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from headrace import wire

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
WRITERS = 4
KILLS = 3
BLOCKS_PER_LIFE = (5, 60)
BLOCKS_IN_FLIGHT = 4
BLOCK_BYTES = (1, 60_000)


class Connection:
    """A raw connection that raises ConnectionError when the store dies."""

    @classmethod
    async def open(cls, port: int) -> Connection:
        connection = cls()
        connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", port)
        assert await connection.call(wire.Hello(17, 5)) == wire.Hello(17, 5)
        return connection

    def send(self, command: wire.WireCommand) -> None:
        self._writer.write(wire.encode(command))

    async def receive(self) -> wire.WireCommand:
        try:
            header = await asyncio.wait_for(self._reader.readexactly(8), WAIT_S)
            type_code, length = wire.decode_header(header)
            payload = await asyncio.wait_for(self._reader.readexactly(length), WAIT_S)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the store has closed the connection") from error
        return wire.decode(type_code, memoryview(payload))

    async def call(self, command: wire.WireCommand) -> wire.WireCommand:
        self.send(command)
        return await self.receive()

    def close(self) -> None:
        self._writer.close()


@dataclass
class Writer:
    """One writer of one segment. `blocks` is everything that it ever sent; block n ends with event number n."""

    segment: str
    writer_id: int
    random: Random
    blocks: list[bytes] = field(default_factory=list)
    acknowledged: int = -1

    async def resume(self, port: int) -> Connection:
        """Connect, learn what is stored, check it, send the rest of what was in flight."""
        connection = await Connection.open(port)
        reply = await connection.call(wire.SetupAppend(1, self.writer_id, self.segment))
        assert isinstance(reply, wire.AppendSetup), reply
        stored = max(reply.last_event_number, -1)
        assert self.acknowledged <= stored < len(self.blocks)
        reading = await Connection.open(port)
        assert await read_all(reading, self.segment) == b"".join(self.blocks[: stored + 1])
        reading.close()
        self.acknowledged = stored
        for number in range(stored + 1, len(self.blocks)):
            self._send(connection, number)
        return connection

    async def write(self, connection: Connection, on_acknowledged, *, until: int | None = None) -> None:
        """Keep blocks in flight until the store dies, or until `until` blocks are acknowledged."""
        while until is None or self.acknowledged + 1 < until:
            wanted = self.acknowledged + 1 + BLOCKS_IN_FLIGHT
            while len(self.blocks) < (wanted if until is None else min(wanted, until)):
                self.blocks.append(self.random.randbytes(self.random.randint(*BLOCK_BYTES)))
                self._send(connection, len(self.blocks) - 1)
            reply = await connection.receive()
            assert isinstance(reply, wire.DataAppended), reply
            assert reply.previous_event_number == (
                self.acknowledged if self.acknowledged >= 0 else wire.NO_EVENT_NUMBER
            )
            assert reply.current_segment_write_offset == sum(map(len, self.blocks[: reply.event_number + 1]))
            self.acknowledged = reply.event_number
            on_acknowledged()

    def _send(self, connection: Connection, number: int) -> None:
        block = self.blocks[number]
        connection.send(wire.AppendBlockEnd(self.writer_id, len(block), block, 1, number, number))


async def read_all(connection: Connection, segment: str) -> bytes:
    info = await connection.call(wire.GetStreamSegmentInfo(1, segment))
    assert isinstance(info, wire.StreamSegmentInfo), info
    data = bytearray()
    while len(data) < info.write_offset:
        reply = await connection.call(wire.ReadSegment(segment, len(data), 1 << 20, "", 2))
        assert isinstance(reply, wire.SegmentRead), reply
        assert len(reply.data) > 0
        data += reply.data
    assert len(data) == info.write_offset
    return bytes(data)


async def one_life(writers: list[Writer], port: int, kill, kill_after: int) -> None:
    """Write from all writers at once; kill the store after so many acknowledgements."""
    connections = [await writer.resume(port) for writer in writers]
    remaining = kill_after

    def acknowledged() -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            kill()

    outcomes = await asyncio.gather(
        *(writer.write(connection, acknowledged) for writer, connection in zip(writers, connections, strict=True)),
        return_exceptions=True,
    )
    for connection in connections:
        connection.close()
    assert all(isinstance(outcome, ConnectionError) for outcome in outcomes), outcomes


async def last_life(writers: list[Writer], port: int) -> None:
    for writer in writers:
        connection = await writer.resume(port)
        await writer.write(connection, lambda: None, until=len(writer.blocks) + 5)
        assert await read_all(connection, writer.segment) == b"".join(writer.blocks)
        connection.close()


async def create_segments(writers: list[Writer], port: int) -> None:
    connection = await Connection.open(port)
    for writer in writers:
        created = await connection.call(wire.CreateSegment(1, writer.segment, 0, 0))
        assert created == wire.SegmentCreated(1, writer.segment)
    connection.close()


@pytest.mark.parametrize("seed", [1, *(pytest.param(number, marks=pytest.mark.nightly) for number in (2, 3))])
async def test_acknowledged_appends_survive_in_order_and_once(make_store, seed):
    random = Random(seed)
    # Small and early flushes, so that kills also hit tier 2 and the directory half-way.
    store = make_store(flush_age_s=0.05, flush_bytes=random.choice([1, 300_000]))
    writers = [
        Writer(f"scope/stream/{number}.#epoch.0", random.getrandbits(128), Random(random.random()))
        for number in range(WRITERS)
    ]
    store.start()
    await create_segments(writers, store.port)
    for _ in range(KILLS):
        await one_life(writers, store.port, store.kill, random.randint(*BLOCKS_PER_LIFE))
        assert not store.is_running()
        store.start()
    await last_life(writers, store.port)
    assert store.stop() == 0


async def test_a_graceful_stop_leaves_everything_in_tier_2(make_store):
    store = make_store(flush_age_s=3600, flush_bytes=1 << 30)
    writer = Writer("scope/stream/0.#epoch.0", 7, Random(7))
    store.start()
    await create_segments([writer], store.port)

    connection = await writer.resume(store.port)
    await writer.write(connection, lambda: None, until=50)
    connection.close()
    assert store.stop() == 0
    store.start()
    await last_life([writer], store.port)
    assert store.stop() == 0
