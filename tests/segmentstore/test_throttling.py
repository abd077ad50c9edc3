"""While tier 2 does not keep up, connections slow down before anything is full, lose nothing, and recover."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_machine_doubles import Replies
from store_world import World

from headrace import wire
from headrace.model.errors import ThrottledError, UnavailableError
from headrace.segmentstore.connections.receive_memory import ReceiveMemory
from headrace.segmentstore.connections.session import Session
from headrace.segmentstore.containers import log_room
from headrace.segmentstore.tiering import storage_limits as throttle_module
from headrace.segmentstore.tiering.storage_limits import THROTTLE_DELAY_S_MAX, THROTTLE_FROM_FILL, throttle_delay_s

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 5


@given(st.floats(0, 2), st.floats(0, 2))
def test_the_delay_grows_with_the_fill(first, second):
    low, high = sorted((first, second))
    assert 0 <= throttle_delay_s(low) <= throttle_delay_s(high) <= THROTTLE_DELAY_S_MAX
    assert high > THROTTLE_FROM_FILL or throttle_delay_s(high) == 0


def test_delay_is_zero_while_tier_2_keeps_up_and_full_at_limit():
    assert throttle_delay_s(0) == throttle_delay_s(THROTTLE_FROM_FILL) == 0
    assert throttle_delay_s(1.0) == throttle_delay_s(1.5) == THROTTLE_DELAY_S_MAX
    middle = (1 + THROTTLE_FROM_FILL) / 2
    assert throttle_delay_s(middle) == pytest.approx(THROTTLE_DELAY_S_MAX / 4)


class Tap(Replies):
    """A channel that knows whether it may receive."""

    receiving = True

    def pause_receiving(self):
        self.receiving = False

    def resume_receiving(self):
        self.receiving = True


def receive(session, command):
    frame = wire.encode(command)
    session.assembler.writable()[: len(frame)] = frame
    session.received(len(frame))


async def test_appending_connections_are_throttled_and_readers_are_not(make_world: type[World], monkeypatch):
    monkeypatch.setattr(throttle_module, "THROTTLE_DELAY_S_MAX", 0.001)
    world = make_world(container_count=1, cache_bytes=1 << 20, block_bytes=64 << 10)

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        taps = [Tap(), Tap()]
        memory = ReceiveMemory(32 << 20, 100)
        writing, reading = (Session(running.store, tap, memory, "tap", lambda: 1) for tap in taps)
        receive(writing, wire.SetupAppend(1, WRITER, SEGMENT))
        receive(writing, wire.AppendBlockEnd(WRITER, 3, b"abc", 1, 0, 2))
        await running.until(lambda: len(taps[0].sent) > 60)
        assert taps[0].receiving
        pool = running.store.pool
        hoard = [pool.reserve(60_000) for _ in range(15)]  # what tier 2 does not take
        assert pool.untiered_bytes > THROTTLE_FROM_FILL * pool.capacity_bytes
        receive(writing, wire.AppendBlockEnd(WRITER, 3, b"def", 1, 1, 3))
        receive(reading, wire.ReadSegment(SEGMENT, 0, 10, "", 4))
        assert [tap.receiving for tap in taps] == [False, True]
        await running.until(lambda: taps[0].receiving)
        receive(writing, wire.AppendBlockEnd(WRITER, 3, b"ghi", 1, 2, 5))
        assert not taps[0].receiving
        for each in hoard:
            pool.release(each)
        await running.until(lambda: taps[0].receiving)
        receive(writing, wire.AppendBlockEnd(WRITER, 3, b"jkl", 1, 3, 6))
        assert taps[0].receiving
        await running.until(lambda: running.store.owned[0].container.metadata.segments[SEGMENT].durable.length == 12)
        writing.disconnected()
        reading.disconnected()


class Troubled:
    """Chunk storage in trouble: every other request fails, or each takes some turns of the loop."""

    def __init__(self, chunks, error):
        self.error = error
        self.requests = 0
        self._chunks = chunks

    def __getattr__(self, name):
        return getattr(self._chunks, name)

    async def put(self, name, parts):
        self.requests += 1
        if self.error is None:
            for _ in range(200):
                await asyncio.sleep(0)
        elif self.requests % 2:
            raise self.error
        await self._chunks.put(name, parts)


@pytest.mark.parametrize("error", [None, UnavailableError("S3 is away"), ThrottledError("SlowDown")], ids=str)
async def test_appends_go_on_at_the_rate_of_a_tier_2_in_trouble(make_world: type[World], monkeypatch, error):
    monkeypatch.setattr(throttle_module, "THROTTLE_DELAY_S_MAX", 0.01)
    world = make_world(container_count=1, cache_bytes=2 << 20, block_bytes=64 << 10, file_bytes=256 << 10)
    world.limits = replace(world.limits, object_bytes_max=256 << 10, checkpoint_every_bytes=256 << 10)
    world.chunks = Troubled(world.chunks, error)
    blocks = [bytes([number % 251]) * 30_000 for number in range(300)]  # 9 MB through 2 MB of memory

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        store, delays, untiered, held = running.store, [], [], []
        honest = store.throttle.delay_s

        def noted(now_s, appended):
            delays.append(honest(now_s, appended))
            untiered.append(store.pool.untiered_bytes)
            held.append(store.owned[0].container.log.ledger.held_bytes)
            return delays[-1]

        store.throttle.delay_s = noted
        client.send(*(wire.AppendBlockEnd(WRITER, len(data), data, 1, n, n) for n, data in enumerate(blocks)))
        acknowledged = -1
        while acknowledged < len(blocks) - 1:
            acknowledged = (await client.receive()).event_number
        assert any(delays)
        assert max(untiered) <= store.pool.capacity_bytes
        assert max(held) < 2 * store.pool.capacity_bytes
        assert store.owned[0].container.failure is None
        assert await client.read_all(SEGMENT) == b"".join(blocks)
        assert honest(store.clock.monotonic_s(), list) < THROTTLE_DELAY_S_MAX


async def test_log_that_fills_up_slows_appends_before_rejecting_them(make_world: type[World], monkeypatch):
    """Many small operations: the cache has room, but tier 2 does not let go of the log."""
    limit = 100_000
    monkeypatch.setattr(throttle_module, "THROTTLE_DELAY_S_MAX", 0.01)
    monkeypatch.setattr(log_room, "LOOKED_AT_EVERY_S", 0.0)
    monkeypatch.setattr(log_room, "HELD_LOG_BYTES_MAX", limit)
    world = make_world(container_count=1, file_bytes=64 << 10)
    world.limits = replace(world.limits, checkpoint_every_bytes=20_000)
    world.chunks = troubled = Troubled(world.chunks, UnavailableError("S3 is away"))

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        throttle = running.store.throttle
        honest, troubled.put = troubled.put, refused
        number = 0
        while not throttle.log_is_full(list):
            client.send(wire.AppendBlockEnd(WRITER, 2000, b"x" * 2000, 1, number, number))
            await client.receive()
            number += 1
            throttle.delay_s(running.store.clock.monotonic_s(), list)
        client.send(wire.AppendBlockEnd(WRITER, 2000, b"y" * 2000, 1, number, number))
        client.send(wire.AppendBlockEnd(WRITER, 2000, b"z" * 2000, 1, number + 1, number + 1))
        troubled.put = honest
        world.clock.advance(2e9)
        acknowledged = 0
        while acknowledged < number + 1:  # no append was refused, and no connection was closed
            acknowledged = (await client.receive()).event_number
        await running.flush()
        await running.until(lambda: throttle.delay_s(running.store.clock.monotonic_s(), list) == 0)


async def refused(_name, _parts):
    raise UnavailableError("S3 is away")
