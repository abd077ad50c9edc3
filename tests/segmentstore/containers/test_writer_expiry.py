"""Writers that are gone are forgotten, so that a segment takes new ones for ever; none is forgotten wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from idle_segments import IDLE_S, evict, names_in_memory, running_store
from list_ledger import ListLedger, open_log, turn
from lost_volumes import killed, lose_volume, snapshot
from store_world import World

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.container_snapshots import WritersGone, encode_segment
from headrace.codec.data_frames import AttributesOperation, CreateOperation, DeleteOperation, EvictOperation
from headrace.model.errors import ConflictError, ThrottledError
from headrace.model.limits import WRITER_KEPT_S_MIN
from headrace.model.segment_attributes import ATTRIBUTES_PER_SEGMENT_MAX, CLIENT_ATTRIBUTES_MAX, NO_VALUE
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers import writer_expiry
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.writer_expiry import (
    CROWDED_AT,
    NEVER_EXPIRES_BELOW,
    PERIOD_S,
    SWEEP_EVERY_S,
    WRITER_KEPT_S,
    WRITERS_PER_TURN,
    WriterExpiry,
)

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
HOUR_S = 3_600
LONG_S = 36 * HOUR_S
"""Longer than WRITER_KEPT_S, and more writers than a segment takes at a time if one comes each second."""

CORE_ATTRIBUTES = 5


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1)


@pytest.fixture
def few(monkeypatch):
    """Limits that a test reaches with few writers."""
    monkeypatch.setattr(writer_expiry, "NEVER_EXPIRES_BELOW", 20)
    monkeypatch.setattr(writer_expiry, "CROWDED_AT", 60)


@pytest.fixture
def leaving_world(world: World):
    """Segments leave memory as soon as no client asks for them."""
    world.limits = replace(world.limits, idle_segments_kept=0, idle_segment_s=IDLE_S)
    return world


def segment_of(running):
    return running.store.owned[0].container.metadata.segments[SEGMENT]


def come_and_go(container, writer_ids, number=1, name=SEGMENT):
    """Writers that are set up, append an event of no bytes with this number, and are gone."""
    segment, nothing = container.metadata.segments[name], container.pool.reserve(0)
    for writer_id in writer_ids:
        container.writers.connect(name, writer_id)
        try:
            container.append(segment, writer_id, NO_VALUE, number, 1, nothing, lambda _error: None)
        finally:
            container.writers.disconnect(name, writer_id)


async def created(running):
    client = await running.connect()
    await client.create(SEGMENT)
    return client, running.store.owned[0].container


def writers_of(running):
    return {key for key in segment_of(running).accepted.attributes if key < 1 << 127}


@pytest.mark.nightly
async def test_a_writer_per_second_is_accepted_for_ever(world: World):
    assert max(WRITER_KEPT_S, ATTRIBUTES_PER_SEGMENT_MAX) < LONG_S
    async with running_store(world) as running:
        _, container = await created(running)
        most = state_bytes = 0
        for second in range(0, LONG_S, int(SWEEP_EVERY_S)):
            come_and_go(container, range(second + 1, second + 1 + int(SWEEP_EVERY_S)))
            most = max(most, len(segment_of(running).accepted.attributes))
            world.clock.advance(SWEEP_EVERY_S)
            await container.log.durable()
            await container.writers.sweep()
        await container.log.durable()
        state_bytes = len(encode_segment(segment_of(running).snapshot()))
        left = dict(segment_of(running).accepted.attributes)
        assert CROWDED_AT - WRITERS_PER_TURN < most <= CROWDED_AT + CORE_ATTRIBUTES + SWEEP_EVERY_S
        assert LONG_S in left, "the newest writer is known"
        assert sum(map(len, container.writers._gone_since.values())) <= len(left)
        assert state_bytes < 3 << 20
    async with running_store(world) as running:
        assert segment_of(running).accepted.attributes == left
        assert segment_of(running).accepted.forgot_writers


async def test_a_full_segment_takes_writers_again(world: World):
    """Also one that was full before writers expired: those who came with the log count from its opening."""

    async with running_store(world, graceful=False) as running:
        _, container = await created(running)
        come_and_go(container, range(1, ATTRIBUTES_PER_SEGMENT_MAX - CORE_ATTRIBUTES + 1))
        with pytest.raises(ThrottledError):
            come_and_go(container, [ATTRIBUTES_PER_SEGMENT_MAX + 1])
        await container.log.durable()
    async with running_store(world) as running:
        container = running.store.owned[0].container
        assert await container.writers.sweep() == 0
        world.clock.advance(WRITER_KEPT_S_MIN)
        assert await container.writers.sweep() == ATTRIBUTES_PER_SEGMENT_MAX - CROWDED_AT
        come_and_go(container, [ATTRIBUTES_PER_SEGMENT_MAX + 1])


async def test_attributes_of_clients_lock_no_writer_out(world: World):
    """Each client may set some, which never expire. A release without this limit let them fill the segment."""
    async with running_store(world) as running:
        client, container = await created(running)
        for key in range(1 << 40, (1 << 40) + CLIENT_ATTRIBUTES_MAX):
            reply = await client.call(wire.UpdateSegmentAttribute(5, SEGMENT, key, 42, NO_VALUE))
            assert reply == wire.SegmentAttributeUpdated(5, True)
        reply = await client.call(wire.UpdateSegmentAttribute(5, SEGMENT, 1 << 41, 42, NO_VALUE))
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT
        assert "attributes" in reply.message
        assert "writer" not in reply.message
        reply = await client.call(wire.UpdateSegmentAttribute(5, SEGMENT, 1 << 40, 43, 42))
        assert reply == wire.SegmentAttributeUpdated(5, True), "those that it has can be changed"
        former = segment_of(running).accepted
        update = dict.fromkeys(range(1 << 50, (1 << 50) + ATTRIBUTES_PER_SEGMENT_MAX), 1)
        former.client_attributes = {*former.client_attributes, *update}
        former.attributes.update(update)
        come_and_go(container, [7])
        assert 7 in segment_of(running).accepted.attributes


async def test_unknown_attribute_of_the_store_cannot_be_set(world: World):
    async with running_store(world) as running:
        client, _ = await created(running)
        for key in ((1 << 127) | 99, (1 << 127) | (1 << 63)):
            reply = await client.call(wire.UpdateSegmentAttribute(5, SEGMENT, key, 42, NO_VALUE))
            assert isinstance(reply, wire.ErrorMessage)
            assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT


async def test_the_oldest_go_first_and_the_others_stay(world: World, few):

    async with running_store(world) as running:
        _, container = await created(running)
        come_and_go(container, range(1, 31))
        assert await container.writers.sweep() == 0
        world.clock.advance(WRITER_KEPT_S - 1)
        come_and_go(container, range(31, 41))
        assert await container.writers.sweep() == 0
        world.clock.advance(1)
        assert await container.writers.sweep() == 30 + 10 + CORE_ATTRIBUTES - 20
        assert writers_of(running) == set(range(26, 41)), "few are left: they cost nothing"
        come_and_go(container, range(41, 101))
        world.clock.advance(WRITER_KEPT_S_MIN)
        assert await container.writers.sweep() == 5 + 10 + 5, "a crowded segment keeps numbers for an hour"
        assert writers_of(running) == set(range(46, 101))


async def test_a_connected_writer_is_never_forgotten(world: World, few):
    """Not while its segment leaves memory either, nor on one of two connections."""

    async with running_store(world) as running:
        client, container = await created(running)
        other = await running.connect()
        await client.set_up(SEGMENT, 7)
        await other.set_up(SEGMENT, 7)
        await client.append(7, 1, b"first")
        come_and_go(container, range(100, 200))
        await container.writers.sweep()
        other.close()
        await running.until(lambda: container.writers._connected[SEGMENT] == {7: 1})
        world.clock.advance(10 * WRITER_KEPT_S)
        assert await container.writers.sweep() > 0
        assert 7 in writers_of(running)
        await client.append(7, 2, b"second")
        client.close()
        await running.until(lambda: not container.writers._connected)
        world.clock.advance(WRITER_KEPT_S)
        come_and_go(container, range(200, 230))
        await container.writers.sweep()
        assert 7 not in writers_of(running)


async def test_writer_that_came_back_is_not_forgotten(world: World, few):

    async with running_store(world) as running:
        _, container = await created(running)
        come_and_go(container, range(100, 200))
        assert await container.writers.sweep() == 0, "from now on their times are counted"
        container.writers.connect(SEGMENT, 100)
        world.clock.advance(2 * WRITER_KEPT_S)
        assert await container.writers.sweep() > 0
        assert 100 in writers_of(running)


async def test_writer_that_left_without_an_event_has_no_time(world: World, few):
    """There is no number of it that could expire. Twenty others are connected, so that all times are looked at."""
    async with running_store(world) as running:
        _, container = await created(running)
        come_and_go(container, range(100, 150))
        for writer_id in range(100, 120):
            container.writers.connect(SEGMENT, writer_id)
        assert await container.writers.sweep() == 0
        container.writers.connect(SEGMENT, 7)
        container.writers.disconnect(SEGMENT, 7)
        world.clock.advance(WRITER_KEPT_S)
        assert await container.writers.sweep() == 30
        assert writers_of(running) == set(range(100, 120))


async def test_times_go_with_their_segment(world: World, few):
    async with running_store(world) as running:
        _, container = await created(running)
        come_and_go(container, range(100, 150))
        await container.writers.sweep()
        container.writers.connect(SEGMENT, 100)
        await container.delete(SEGMENT)
        container.writers.disconnect(SEGMENT, 100)
        assert container.writers._gone_since
        assert await container.writers.sweep() == 0
        assert not container.writers._gone_since


async def test_sweep_takes_every_segment_and_lets_the_loop_turn(world: World, few, monkeypatch):
    monkeypatch.setattr(writer_expiry, "WRITERS_PER_TURN", 10)
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with running_store(world) as running:
        client, container = await created(running)
        names = [SEGMENT, *(f"scope/stream/{number}.#epoch.0" for number in range(1, 20))]
        for name in names[1:]:
            await client.create(name)
        counting = asyncio.ensure_future(count_turns())
        assert await container.writers.sweep() == 0
        assert turns >= len(names) // 10, "each of few segments is looked at"
        for name in names[:2]:
            come_and_go(container, range(100, 130), name=name)
        turns = 0
        assert await container.writers.sweep() == 0
        assert turns >= len(names) // 10 + 2 * 30 // 10, "each writer gets its time"
        world.clock.advance(WRITER_KEPT_S)
        turns = 0
        assert await container.writers.sweep() == 2 * (30 + CORE_ATTRIBUTES - 20)
        assert turns >= 2 * 30 // 10
        counting.cancel()


async def test_writer_stays_connected_while_its_segment_is_evicted(world: World, few):

    world.limits = type(world.limits)(
        flush_age_s=1e6, flush_bytes=1 << 40, tick_s=0.01, idle_segment_s=IDLE_S, idle_segments_kept=0
    )
    async with running_store(world) as running:
        client, container = await created(running)
        await client.set_up(SEGMENT, 7)
        await client.append(7, 1, b"first")
        come_and_go(container, range(100, 200))
        assert await evict(running) == 1
        assert not names_in_memory(running)
        await client.append(7, 2, b"second")
        await container.writers.sweep()
        world.clock.advance(2 * WRITER_KEPT_S)
        assert await container.writers.sweep() > 0
        assert 7 in writers_of(running)


async def leave(running):
    """The segment leaves memory after an hour in which no client asked for it."""
    container = running.store.owned[0].container
    await container.log.durable()
    segment_of(running).used_s = -IDLE_S
    running.world.clock.advance(HOUR_S)
    await running.store.owned[0].evictor.sweep()
    assert not names_in_memory(running)


async def test_time_goes_on_while_a_segment_is_not_in_memory(leaving_world: World, few):
    """A segment that leaves memory each hour, and comes back for one writer, forgets those that are gone."""

    async with running_store(leaving_world) as running:
        client, container = await created(running)
        await evict(running)
        await client.set_up(SEGMENT, 7)
        await client.append(7, 1, b"")
        come_and_go(container, range(100, 140))
        await container.log.durable()
        running.store.owned[0].evictor._limits = replace(leaving_world.limits, idle_segment_s=HOUR_S)
        for hour in range(1, 26):  # they count as gone from the first hour on, at which the store looks
            await leave(running)
            assert await client.set_up(SEGMENT, 7) == hour
            await client.append(7, hour + 1, b"")
            if hour < 25:
                assert set(range(100, 140)) <= writers_of(running), hour
        await leave(running)
        assert await client.set_up(SEGMENT, 7) == 26
        left = writers_of(running)
        assert 7 in left
        assert len(left) <= 20
        assert segment_of(running).accepted.forgot_writers


async def test_writer_that_came_while_others_were_gone_stays(leaving_world: World, few):
    """Each writer has its own time, also across an absence of the segment; no writer expires early."""

    async with running_store(leaving_world) as running:
        _, container = await created(running)
        await evict(running)
        assert await container.find(SEGMENT) is not None
        come_and_go(container, range(100, 130))
        running.store.owned[0].evictor._limits = replace(leaving_world.limits, idle_segment_s=HOUR_S)
        for hour in range(12):
            await leave(running)
            assert await container.find(SEGMENT) is not None
            if hour == 5:
                come_and_go(container, range(200, 225))
        world_clock = leaving_world.clock
        world_clock.advance(HOUR_S + WRITER_KEPT_S - 12 * HOUR_S - 1)  # seen at the first eviction
        assert await container.writers.sweep() == 0
        world_clock.advance(1 + SWEEP_EVERY_S)  # a record tells half hours
        assert await container.writers.sweep() == 30
        assert set(range(200, 225)) <= writers_of(running)


async def test_time_of_another_opening_is_not_taken_over(leaving_world: World, few):
    """A start gives all writers their time again: the former one may have counted by another clock."""

    async with running_store(leaving_world) as running:
        _, container = await created(running)
        await evict(running)
        assert await container.find(SEGMENT) is not None
        come_and_go(container, range(100, 140))
        running.store.owned[0].evictor._limits = replace(leaving_world.limits, idle_segment_s=HOUR_S)
        await leave(running)
    leaving_world.clock.advance(WRITER_KEPT_S)
    async with running_store(leaving_world) as running:
        container = running.store.owned[0].container
        assert await container.find(SEGMENT) is not None
        assert await container.writers.sweep() == 0
        leaving_world.clock.advance(WRITER_KEPT_S)
        assert await container.writers.sweep() > 0


async def test_what_was_forgotten_stays_so(world: World, few):
    """After a crash, after an orderly end, from the snapshot in tier 2, and after leaving memory."""

    async with running_store(world, graceful=False) as running:
        _, container = await created(running)
        come_and_go(container, range(1, 101))
        await container.writers.sweep()
        world.clock.advance(WRITER_KEPT_S)
        await container.writers.sweep()
        left = writers_of(running)
        assert 0 < len(left) < 20
        await container.log.durable()
    for graceful in (False, True):
        async with running_store(world, graceful=graceful) as running:
            assert (writers_of(running), segment_of(running).accepted.forgot_writers) == (left, True)
            running.store.owned[0].writer.wake()
    async with killed(world) as running:
        await running.flush()
        await snapshot(running)
    lose_volume(world)
    async with running_store(world) as running:
        assert (writers_of(running), segment_of(running).accepted.forgot_writers) == (left, True)
        with pytest.raises(ConflictError) as refused:
            come_and_go(running.store.owned[0].container, [1], number=2)
        assert refused.value.specific_code == wire.WRITER_FORGOTTEN


async def test_a_forgotten_writer_that_comes_back_is_refused(world: World, few):
    """Whether event 2 is stored is not known any more. A new writer, which counts from 1, is served."""

    async with running_store(world) as running:
        client, container = await created(running)
        come_and_go(container, range(100, 200))
        await container.writers.sweep()
        world.clock.advance(WRITER_KEPT_S)
        await container.writers.sweep()
        assert await client.set_up(SEGMENT, 100) == NO_VALUE
        length = segment_of(running).accepted.length
        refusal = await client.call(wire.AppendBlockEnd(100, 4, b"late", 1, 2, 9))
        assert refusal == wire.InvalidEventNumber(100, 9, wire.WRITER_FORGOTTEN, 2)
        assert await client.closed()
        assert segment_of(running).accepted.length == length
        fresh = await running.connect()
        assert await fresh.set_up(SEGMENT, 300) == NO_VALUE
        await fresh.append(300, 3, b"three events", count=3)
        await fresh.append(300, 4, b"another")
        # A condition on the offset is all that such an append needs.
        assert await fresh.set_up(SEGMENT, 101) == NO_VALUE
        offset = segment_of(running).accepted.length
        reply = await fresh.call(wire.ConditionalBlockEnd(101, 77, offset, b"conditional", 9))
        assert isinstance(reply, wire.DataAppended)
        # Nor may it go on in the successors of a sealed segment, where the event would be written a second time.
        assert await fresh.call(wire.SealSegment(12, SEGMENT)) == wire.SegmentSealed(12, SEGMENT)
        assert await fresh.set_up(SEGMENT, 102) == NO_VALUE
        refusal = await fresh.call(wire.AppendBlockEnd(102, 4, b"late", 1, 2, 9))
        assert refusal == wire.InvalidEventNumber(102, 9, wire.WRITER_FORGOTTEN, 2)


async def test_what_clients_set_by_request_never_expires(world: World, few):
    mark = 0xABCDEF

    async with running_store(world, graceful=False) as running:
        client, container = await created(running)
        reply = await client.call(wire.UpdateSegmentAttribute(5, SEGMENT, mark, 42, NO_VALUE))
        assert reply == wire.SegmentAttributeUpdated(5, True)
        come_and_go(container, range(1, 101))
        await container.log.durable()
    for _ in range(2):  # the first time from the log, then from a checkpoint
        async with running_store(world) as running:
            container = running.store.owned[0].container
            come_and_go(container, range(1_000 + world.clock.ms, 1_100 + world.clock.ms))
            await container.writers.sweep()
            world.clock.advance(2 * WRITER_KEPT_S)
            assert await container.writers.sweep() > 0
            client = await running.connect()
            reply = await client.call(wire.GetSegmentAttribute(6, SEGMENT, mark))
            assert reply == wire.SegmentAttribute(6, 42)


async def test_a_segment_of_few_writers_forgets_none(world: World):

    async with running_store(world) as running:
        _, container = await created(running)
        come_and_go(container, range(1, NEVER_EXPIRES_BELOW - CORE_ATTRIBUTES + 1))
        world.clock.advance(100 * WRITER_KEPT_S)
        assert await container.writers.sweep() == 0
        assert not container.writers._gone_since


async def test_segment_of_one_writer_too_many_forgets_one(world: World, few):
    async with running_store(world) as running:
        _, container = await created(running)
        come_and_go(container, range(1, 21 - CORE_ATTRIBUTES + 1))
        assert await container.writers.sweep() == 0
        world.clock.advance(WRITER_KEPT_S)
        assert await container.writers.sweep() == 1
        assert writers_of(running) == set(range(2, 21 - CORE_ATTRIBUTES + 1))
        assert await container.writers.sweep() == 0
        assert not container.writers._gone_since, "the times of few writers need no memory"


def expiry_of(
    clock: ManualClock, *writer_ids: int, check_log_space: Callable[[], None] = lambda: None
) -> tuple[WriterExpiry, Segment]:
    """The expiry of a container that is opened now in epoch 3, and its segment that knows these writers."""
    metadata = ContainerMetadata(0, BlockPool(1 << 20, 64 << 10), lambda _segment: None)
    metadata.apply(CreateOperation(1, SEGMENT, (), 0), 0, 1)()
    segment = metadata.segments[SEGMENT]
    for writer_id in writer_ids:
        metadata.append(segment, 0, writer_id, 1, 1, 0)
    return WriterExpiry(3, metadata, open_log(ListLedger()), clock, check_log_space), segment


OPENED_S = 7_000.0


async def test_record_has_the_period_in_which_each_writer_left(few):
    """Rounded up, so that no number expires too early. A connected writer has none."""
    clock = ManualClock()
    clock.advance(int(OPENED_S * 1000))
    writers, segment = expiry_of(clock, *range(1, 31))
    writers.connect(SEGMENT, 3)
    await writers.sweep()
    for writer_id, later_s in ((4, 1), (5, PERIOD_S - 1), (6, 1)):
        clock.advance(int(later_s * 1000))
        writers.connect(SEGMENT, writer_id)
        writers.disconnect(SEGMENT, writer_id)
    recorded = writers.gone_of(segment)
    assert recorded == WritersGone(3, (0, 0, -1, 1, 1, 2, *[0] * 24))
    assert writers.gone_of(segment) == recorded
    assert set(writers._gone_since[SEGMENT]) == {*range(1, 31)} - {3}
    writers.evicted(segment)
    assert not writers._gone_since
    writers.activated(segment, recorded)
    in_order = [(writer_id, OPENED_S) for writer_id in (1, 2, *range(7, 31))]
    later = [(4, OPENED_S + PERIOD_S), (5, OPENED_S + PERIOD_S), (6, OPENED_S + 2 * PERIOD_S)]
    assert list(writers._gone_since[SEGMENT].items()) == [*in_order, *later], "the oldest first"
    assert writers.gone_of(segment) == recorded, "a second eviction does not age them"


async def test_connection_made_during_an_eviction_counts(few):
    writers, segment = expiry_of(ManualClock(), *range(1, 31))
    writers.connect(SEGMENT, 2)
    writers.activated(segment, WritersGone(3, (0,) * 30))
    assert set(writers._gone_since[SEGMENT]) == {*range(1, 31)} - {2}


async def test_connection_that_ended_during_an_eviction_has_no_time(few):
    """The next sweep gives it one, so that its number does not expire too early."""
    writers, segment = expiry_of(ManualClock(), *range(1, 31))
    writers.activated(segment, WritersGone(3, (0, -1, *[0] * 28)))
    assert set(writers._gone_since[SEGMENT]) == {*range(1, 31)} - {2}


@pytest.mark.parametrize(
    "recorded", [None, WritersGone(2, (0,) * 30), WritersGone(4, (0,) * 30), WritersGone(3, (0,) * 29)]
)
async def test_times_that_do_not_fit_are_not_taken(few, recorded: WritersGone | None):
    writers, segment = expiry_of(ManualClock(), *range(1, 31))
    writers.activated(segment, recorded)
    assert not writers._gone_since


async def test_record_of_few_writers_has_no_times(few):
    """20 attributes are few, and one is the number of events."""
    for count, periods in ((19, None), (20, (0,) * 20)):
        writers, segment = expiry_of(ManualClock(), *range(1, count + 1))
        assert writers.gone_of(segment) == (periods and WritersGone(3, periods))
        assert bool(writers._gone_since) is bool(periods)


async def test_writer_that_is_forgotten_during_a_sweep_gets_no_time(few, monkeypatch):
    monkeypatch.setattr(writer_expiry, "WRITERS_PER_TURN", 10)
    writers, segment = expiry_of(ManualClock(), *range(1, 31))
    sweeping = asyncio.ensure_future(writers.sweep())
    await turn()
    for writer_id in range(15, 31):
        del segment.accepted.attributes[writer_id]
    assert await sweeping == 0
    assert set(writers._gone_since[SEGMENT]) == set(range(1, 15))


@pytest.mark.parametrize("is_evicted", [False, True])
async def test_segment_that_goes_during_a_sweep_forgets_no_more(few, monkeypatch, *, is_evicted: bool):
    """The log must not refer to it any more. Until then it forgets a few writers in each turn."""
    monkeypatch.setattr(writer_expiry, "WRITERS_PER_TURN", 10)
    clock = ManualClock()
    writers, segment = expiry_of(clock, *range(1, 56))
    await writers.sweep()
    clock.advance(int(WRITER_KEPT_S * 1000))
    sweeping, count = asyncio.ensure_future(writers.sweep()), len(segment.accepted.attributes)
    while len(segment.accepted.attributes) == count:
        await turn()
    if is_evicted:
        writers._metadata.apply(EvictOperation(1), 0, 1)()
        writers.evicted(segment)
    else:
        writers._metadata.apply(DeleteOperation(1, 0), 0, 1)()
    assert await sweeping == 10
    assert len(segment.accepted.attributes) == count - 10


async def test_full_log_forgets_no_writers(few):
    def refuse() -> None:
        raise ThrottledError("the log is full")

    clock = ManualClock()
    writers, segment = expiry_of(clock, *range(1, 31), check_log_space=refuse)
    assert await writers.sweep() == 0
    clock.advance(int(WRITER_KEPT_S * 1000))
    with pytest.raises(ThrottledError):
        await writers.sweep()
    assert set(range(1, 31)) < set(segment.accepted.attributes)


async def test_record_has_no_time_of_what_clients_set(few):
    writers, segment = expiry_of(ManualClock(), *range(1, 31))
    writers._metadata.apply(AttributesOperation(1, ((500, 1),), 0), 0, 1)()
    assert writers.gone_of(segment) == WritersGone(3, (0,) * 30)
    assert 500 not in writers._gone_since[SEGMENT]
