"""kill -9 under everything that changes a segment, with checkpoints all the time: each request happened whole or not.

One request is under way per segment when the store dies. What was acknowledged must be there, what was under way may
be; from memory after each recovery, and from S3 alone after a last start in good order.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from random import Random

import pytest

from headrace import wire
from headrace.model.names import container_of_segment

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
STORES = 2
CONTAINERS = 3
SEGMENTS = 4
KILLS = 3
REQUESTS_PER_LIFE = (10, 80)
BYTES = (1, 40_000)


class ElsewhereError(Exception):
    """The container has moved to another store."""


class Connection:
    """Raises ConnectionError when the store dies."""

    @classmethod
    async def open(cls, port):
        connection = cls()
        connection.reader, connection.writer = await asyncio.open_connection("127.0.0.1", port)
        await connection.call(wire.Hello(17, 5))
        return connection

    async def call(self, command):
        self.writer.write(wire.encode(command))
        try:
            type_code, length = wire.decode_header(await asyncio.wait_for(self.reader.readexactly(8), WAIT_S))
            payload = await asyncio.wait_for(self.reader.readexactly(length), WAIT_S)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the store has closed the connection") from error
        return wire.decode(type_code, memoryview(payload))


class Life:
    """One segment and what must be in it. `under_way` is the state if the request under way has happened."""

    def __init__(self, segment, store, seed):
        self.segment, self.store = segment, store
        self.random = Random(seed)
        self.data, self.start = b"", 0
        self.under_way = (b"", 0)
        self.event_number = 0
        self.transactions = 0

    async def live(self, acknowledged):
        self.connection = await Connection.open(self.store.port)
        await self.check()
        while True:
            kinds = [self.append, self.append, self.conditional, self.merge, self.truncate, self.pass_by]
            kind = self.random.choice(kinds)
            await kind()
            acknowledged()

    async def request(self, command, expected, after=None):
        """Send a request; with `after`, it changes the segment to that."""
        self.under_way = after or self.under_way
        reply = await self.connection.call(command)
        assert isinstance(reply, expected), reply
        if after:
            self.data, self.start = after
        return reply

    def block(self):
        return self.random.randbytes(self.random.randint(*BYTES))

    async def set_up(self, segment, writer_id):
        reply = await self.request(wire.SetupAppend(1, writer_id, segment), wire.AppendSetup)
        self.event_number += 1
        return reply

    async def append(self):
        block = self.block()
        await self.set_up(self.segment, 5)
        append = wire.AppendBlockEnd(5, len(block), block, 1, self.event_number, 2)
        await self.request(append, wire.DataAppended, (self.data + block, self.start))

    async def conditional(self):
        block = self.block()
        await self.set_up(self.segment, 6)
        wrong = wire.ConditionalAppend(6, self.event_number, len(self.data) + 1, block, 3)
        await self.request(wrong, wire.ConditionalCheckFailed)
        right = wire.ConditionalAppend(6, self.event_number, len(self.data), block, 3)
        stored = struct.pack(">ii", 0, len(block)) + block
        await self.request(right, wire.DataAppended, (self.data + stored, self.start))

    async def filled(self):
        """A new segment beside this one, and what is in it."""
        self.transactions += 1
        name = f"{self.segment}#transaction.{self.transactions:032x}"
        await self.request(wire.CreateSegment(4, name, 0, 0), wire.SegmentCreated)
        blocks = [self.block() for _ in range(self.random.randint(0, 3))]
        for block in blocks:
            await self.set_up(name, 7)
            append = wire.AppendBlockEnd(7, len(block), block, 1, self.event_number, 5)
            await self.request(append, wire.DataAppended)
        return name, b"".join(blocks)

    async def merge(self):
        name, content = await self.filled()
        if self.random.random() < 0.5:
            await self.request(wire.SealSegment(6, name), wire.SegmentSealed)
        merge = wire.MergeSegments(7, self.segment, name)
        reply = await self.request(merge, wire.SegmentsMerged, (self.data + content, self.start))
        assert reply.new_target_write_offset == len(self.data)

    async def truncate(self):
        offset = self.random.randint(self.start, len(self.data))
        await self.request(wire.TruncateSegment(8, self.segment, offset), wire.SegmentTruncated, (self.data, offset))

    async def pass_by(self):
        """A segment that comes, is sealed, and goes."""
        name, _ = await self.filled()
        await self.request(wire.SealSegment(9, name), wire.SegmentSealed)
        await self.request(wire.DeleteSegment(10, name), wire.SegmentDeleted)
        assert await self.connection.call(wire.GetStreamSegmentInfo(11, name)) == wire.NoSuchSegment(11, name)

    async def check(self):
        info = await self.ask(wire.GetStreamSegmentInfo(12, self.segment))
        assert isinstance(info, wire.StreamSegmentInfo), info
        possible = [state for state in ((self.data, self.start), self.under_way)
                    if (len(state[0]), state[1]) == (info.write_offset, info.start_offset)]  # fmt: skip
        assert possible, (info, len(self.data), self.start, len(self.under_way[0]), self.under_way[1])
        self.data, self.start = self.under_way = possible[0]
        found = bytearray()
        while self.start + len(found) < len(self.data):
            reply = await self.ask(wire.ReadSegment(self.segment, self.start + len(found), 1 << 20, "", 13))
            assert isinstance(reply, wire.SegmentRead), reply
            found += reply.data
        assert found == self.data[self.start :]

    async def ask(self, command):
        reply = await self.connection.call(command)
        if isinstance(reply, wire.WrongHost):
            raise ElsewhereError
        return reply


async def one_life(lives, kill, requests):
    """All segments live at once; the store dies after so many requests."""
    remaining = requests

    def acknowledged():
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            kill()

    outcomes = await asyncio.gather(*(life.live(acknowledged) for life in lives), return_exceptions=True)
    for life in lives:
        life.connection.writer.close()
    assert all(isinstance(outcome, ConnectionError) for outcome in outcomes), outcomes


async def create_all(lives):
    for life in lives:
        connection = await Connection.open(life.store.port)
        assert isinstance(await connection.call(wire.CreateSegment(1, life.segment, 0, 0)), wire.SegmentCreated)
        connection.writer.close()


async def check_all(lives, stores):
    """A stop in good order moves containers, and a start moves some of them back: segments are where they are found."""
    async with asyncio.timeout(WAIT_S):
        for life in lives:
            for store in itertools.cycle(stores):
                life.connection = await Connection.open(store.port)
                try:
                    await life.check()
                    break
                except ElsewhereError:
                    await asyncio.sleep(0.05)
                finally:
                    life.connection.writer.close()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [11, 12])
async def test_every_request_happened_whole_or_not(make_store, tmp_path, seed):
    random = Random(seed)
    stores = [
        make_store(
            store_id=f"store-{index}", store_index=index, store_count=STORES, data_dir=tmp_path / f"data-{index}",
            flush_age_s=0.05, flush_bytes=100_000, checkpoint_bytes=200_000, idle_segment_s=0.05, segments_kept=0,
        )
        for index in range(STORES)
    ]  # fmt: skip
    names = [f"scope/stream/{number}.#epoch.0" for number in range(SEGMENTS)]
    homes = [container_of_segment(name, CONTAINERS) % STORES for name in names]
    assert set(homes) == set(range(STORES))
    lives = [Life(name, stores[home], random.random()) for name, home in zip(names, homes, strict=True)]

    for store in stores:
        store.start()
    await create_all(lives)
    for _ in range(KILLS):
        await one_life(lives, lambda: [store.kill() for store in stores], random.randint(*REQUESTS_PER_LIFE))
        for store in stores:
            store.start()
    await check_all(lives, stores)
    assert [store.stop() for store in stores] == [0] * STORES
    for store in stores:  # memory is empty now: everything comes from S3
        store.start()
    await check_all(lives, stores)
    assert [store.stop() for store in stores] == [0] * STORES
