"""Create, append, read, crash, recover: the path that everything else hangs on."""

from __future__ import annotations

import pytest
from store_world import World

from headrace import wire

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 0xABCDEF << 64 | 5


async def test_what_is_appended_can_be_read(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        assert await client.set_up(SEGMENT, WRITER) == wire.NO_EVENT_NUMBER
        acknowledged = await client.append(WRITER, 3, b"abc" * 1000)
        assert acknowledged == wire.DataAppended(WRITER, 3, wire.NO_EVENT_NUMBER, 9, 3000)
        assert (await client.append(WRITER, 4, b"x")).previous_event_number == 3
        assert await client.read_all(SEGMENT) == b"abc" * 1000 + b"x"


async def test_large_appends_arrive_whole(world: World):
    data = bytes(range(256)) * 4096 * 3

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, data)
        await client.append(WRITER, 2, b"end")
        assert await client.read_all(SEGMENT) == data + b"end"


async def test_everything_acknowledged_survives_a_crash(world: World):
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        for number in range(100):
            await client.append(WRITER, number, b"event %04d;" % number)
    world.disk = world.disk.cut_power(1)
    async with world.running() as running:
        client = await running.connect()
        assert await client.set_up(SEGMENT, WRITER) == 99
        assert await client.read_all(SEGMENT) == b"".join(b"event %04d;" % number for number in range(100))


async def test_what_is_flushed_is_read_from_tier_2(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        for number in range(10):
            await client.append(WRITER, number, bytes([number]) * 5000)
        await running.flush()
    async with world.running() as running:  # memory is empty now
        client = await running.connect()
        assert await client.set_up(SEGMENT, WRITER) == 9
        assert await client.read_all(SEGMENT) == b"".join(bytes([number]) * 5000 for number in range(10))
