"""Crashes while segments leave memory and come back, with the volume and without it: each is where it was, once."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from idle_segments import (
    FIRST,
    IDLE_S,
    SEGMENTS,
    evict,
    killed,
    names_in_memory,
    passes,
    rest,
    running_store,
    with_evicted,
)
from late_writes import LateWrites
from lost_volumes import NEVER_S, snapshot
from segment_writes import OTHER, WRITER, write
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.metadata.evicted_segment import decode_segment_record, evicted_segment_key
from headrace.model.chunks import chunk_partition
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, Create, Delete

pytestmark = pytest.mark.anyio


async def test_crash_between_record_and_log_keeps_segment_in_memory(world: World):
    async with running_store(world, graceful=False) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"0"])
        await rest(running)
        running.store.owned[0].container.idle.evict = lambda segment, state, forget: False
        assert await running.store.owned[0].evictor.sweep() == 0
        await client.append(WRITER, 1, b"1")
        assert decode_segment_record(world.metadata.get(evicted_segment_key(FIRST)).body).state.length == 1
    async with running_store(world) as running:
        client = await running.connect()
        assert names_in_memory(running) == {FIRST}
        assert await client.set_up(FIRST, WRITER) == 1
        assert await evict(running) == 1  # over the record that is there
        assert await client.read_all(FIRST) == b"01"


async def test_recoveries_know_what_has_left_and_what_is_back(world: World):
    async with running_store(world, graceful=False) as running:
        client = await running.connect()
        for name in SEGMENTS[:3]:
            await client.create(name)
            await write(client, name, [name.encode()])
        assert await evict(running) == 3
        await client.set_up(SEGMENTS[1], WRITER)
        await client.append(WRITER, 1, b"more")
    for graceful in (False, True, True):
        async with running_store(world, graceful=graceful) as running:
            assert names_in_memory(running) == {SEGMENTS[1]}
            client = await running.connect()
            assert isinstance(await client.call(wire.SetupAppend(1, WRITER, "scope/none/0")), wire.NoSuchSegment)
            assert await client.set_up(SEGMENTS[1], WRITER) == 1
            assert await client.read_all(SEGMENTS[1]) == SEGMENTS[1].encode() + b"more"
    async with running_store(world) as running:
        client = await running.connect()
        assert await client.read_all(SEGMENTS[2]) == SEGMENTS[2].encode()
        assert isinstance(await client.call(wire.CreateSegment(1, FIRST, 0, 0)), wire.SegmentAlreadyExists)


async def test_crash_before_a_durable_reload_undoes_the_reload(world: World):
    held = threading.Event()

    async with running_store(world, graceful=False) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"0"])
        assert await evict(running) == 1
        await running.store.owned[0].container.log.durable()
        world.disk.before = lambda step: held.wait(20) if step == "sync" else None
        client.send(wire.SetupAppend(1, OTHER, FIRST))
        await running.until(lambda: FIRST in names_in_memory(running))
        client.send(wire.SealSegment(1, FIRST))
        await running.until(lambda: running.store.owned[0].container.metadata.segments[FIRST].accepted.sealed)
        survivor = world.disk.cut_power(3)
        held.set()
    world.disk = survivor
    async with running_store(world) as running:
        client = await running.connect()
        assert await client.set_up(FIRST, WRITER) == 0
        assert await client.read_all(FIRST) == b"0"


async def test_a_stop_in_good_order_needs_no_volume_for_what_has_left(world: World, calls):
    async with with_evicted(world, *SEGMENTS[:3]) as (_, client):
        await client.set_up(SEGMENTS[1], WRITER)
    world.disk = MemoryJournalDisk()
    calls.clear()
    async with running_store(world) as running:
        assert names_in_memory(running) == {SEGMENTS[1]}
        client = await running.connect()
        for name in SEGMENTS[:3]:
            assert await client.set_up(name, WRITER) == 0
        assert calls["queries"] == 0  # nothing is in doubt


async def test_record_older_than_the_directory_is_updated(world: World):
    async with killed(world) as running:
        client = await running.connect()
        for name in SEGMENTS[:5]:
            await client.create(name)
            await write(client, name, [name.encode()])
        assert await evict(running) == 5
        owned = running.store.owned[0]
        await snapshot(running)
        owned.writer._snapshots._limits = replace(world.limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
        await write(client, SEGMENTS[0], [b"more"], first=1)
        await client.call(wire.DeleteSegment(1, SEGMENTS[1]))
        await client.call(wire.MergeSegments(1, SEGMENTS[2], SEGMENTS[3]))
        await running.flush()
        await running.until(lambda: not owned.container.metadata.deletions)
    for known in (set(), {SEGMENTS[0], SEGMENTS[2], SEGMENTS[4]}):  # the log tells as much as tier 2 did
        async with running_store(world, graceful=False) as running:
            assert names_in_memory(running) == known
            client = await running.connect()
            assert await client.read_all(SEGMENTS[0]) == SEGMENTS[0].encode() + b"more"
            assert await client.read_all(SEGMENTS[2]) == (SEGMENTS[2] + SEGMENTS[3]).encode()
            assert await client.read_all(SEGMENTS[4]) == SEGMENTS[4].encode()
            assert await client.set_up(SEGMENTS[0], WRITER) == 0  # may store "more" twice, loses nothing
            for gone in (SEGMENTS[1], SEGMENTS[3]):
                assert isinstance(await client.call(wire.SetupAppend(6, WRITER, gone)), wire.NoSuchSegment)


async def test_a_record_that_is_written_late_brings_no_segment_back(world: World):
    """DynamoDB may do what it has not answered, also when the segment is removed meanwhile."""
    async with running_store(world, graceful=False) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"0"])
        await rest(running)
        owned = running.store.owned[0]
        late = LateWrites(world, Create, evicted_segment_key(FIRST).__eq__)
        with pytest.raises(UnavailableError):
            await owned.evictor.sweep()
        assert isinstance(await client.call(wire.DeleteSegment(1, FIRST)), wire.SegmentDeleted)
        await passes(running, 3)
        late.take_effect()
        world.clock.advance(UNANSWERED_WRITE_S)
        await running.until(lambda: not owned.container.metadata.deletions)
        assert world.metadata.get(evicted_segment_key(FIRST)) is None
    async with running_store(world) as running:
        client = await running.connect()
        assert isinstance(await client.call(wire.SetupAppend(1, WRITER, FIRST)), wire.NoSuchSegment)


async def test_a_late_removal_meets_no_record_of_a_new_segment(world: World):
    world.limits = replace(world.limits, idle_segment_s=2.0)
    async with running_store(world, graceful=False) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"former"])
        assert await evict(running) == 1
        await client.set_up(FIRST, WRITER)
        owned = running.store.owned[0]
        late = LateWrites(world, Delete, evicted_segment_key(FIRST).__eq__)
        assert isinstance(await client.call(wire.DeleteSegment(1, FIRST)), wire.SegmentDeleted)
        await running.until(lambda: bool(late.kept))
        late.answer_again()
        await passes(running, 3)
        assert FIRST in owned.container.metadata.deletions, "its name is not free yet"
        late.take_effect()
        world.clock.advance(UNANSWERED_WRITE_S)
        await client.create(FIRST)
        await write(client, FIRST, [b"latter"])
        assert await evict(running) == 1
        assert await client.read_all(FIRST) == b"latter"


async def test_a_late_run_is_not_taken_for_that_of_a_new_segment(world: World):
    """The new one has the name of the removed one, and the late run has its first bytes."""
    async with running_store(world, graceful=False) as running:
        client = await running.connect()
        await client.create(FIRST)
        await write(client, FIRST, [b"former"])
        owned = running.store.owned[0]
        late = LateWrites(world, Create, lambda key: key.partition == chunk_partition(FIRST))
        owned.writer._draining = True
        await running.until(lambda: bool(late.kept))
        owned.writer._draining = False
        assert isinstance(await client.call(wire.DeleteSegment(1, FIRST)), wire.SegmentDeleted)
        late.answer_again()
        await passes(running, 3)
        late.take_effect()
        world.clock.advance(UNANSWERED_WRITE_S)
        await running.until(lambda: not owned.container.metadata.deletions)
        await client.create(FIRST)
        await write(client, FIRST, [b"latter"])
        await running.flush()
        assert await client.read_all(FIRST) == b"latter"
    for disk in (world.disk, MemoryJournalDisk()):
        world.disk = disk
        async with running_store(world) as running:
            client = await running.connect()
            assert await client.read_all(FIRST) == b"latter"


async def test_a_number_that_was_given_twice_does_no_harm(world: World):
    """Tier 2 forgot that a segment was made; its record remembers it, with a number that another one has got."""

    async with killed(world) as running:
        client = await running.connect()
        await client.create(FIRST)
        await rest(running)
        owned = running.store.owned[0]
        owned.writer._snapshots._limits = replace(world.limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
        await client.create(SEGMENTS[1])
        await write(client, SEGMENTS[1], [b"remembered"])
        await running.flush()
        world.clock.advance(2 * IDLE_S)
        assert await owned.evictor.sweep() == 2
    async with running_store(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[2])
        await write(client, SEGMENTS[2], [b"new"])
        assert await client.read_all(SEGMENTS[1]) == b"remembered"
        numbers = [segment.number for segment in running.store.owned[0].container.metadata.segments.values()]
        assert len(set(numbers)) == len(numbers) == 3
