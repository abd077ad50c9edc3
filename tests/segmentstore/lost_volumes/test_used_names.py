"""A segment with the name of a removed one, when the newest snapshot in tier 2 has the removed one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from idle_segments import IDLE_S, evict
from lost_volumes import NEVER_S, SEGMENTS, killed, lose_volume, pointer, shape, snapshot
from segment_writes import WRITER, write
from store_world import RunningStore, World

from headrace import wire
from headrace.codec.container_snapshots import ContainerSnapshot
from headrace.metadata.evicted_segment import evicted_segment_key
from headrace.model.errors import UnavailableError
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory

pytestmark = pytest.mark.anyio

NAME = SEGMENTS[0]


@pytest.fixture
def world(make_world: type[World]):
    """Snapshots are only written when something waits for them."""
    world = make_world(container_count=1)
    world.limits = replace(world.limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
    return world


async def stored(running: RunningStore, *events: bytes) -> Any:
    """A client that has created a segment of the name, of which tier 2 has these events."""
    client = await running.connect()
    await client.create(NAME)
    await write(client, NAME, events)
    await running.flush()
    return client


async def snapshot_of_the_segment(running: RunningStore, client: Any) -> None:
    await snapshot(running)
    await client.call(wire.DeleteSegment(3, NAME))


async def snapshot_of_its_seal(running: RunningStore, client: Any) -> None:
    await client.call(wire.SealSegment(3, NAME))
    await snapshot_of_the_segment(running, client)


async def snapshot_of_its_removal(running: RunningStore, client: Any) -> None:
    """From before tier 2 has nothing more of the removed segment."""
    writer = running.store.owned[0].writer
    await writer.stop()
    await client.call(wire.DeleteSegment(3, NAME))
    writer._snapshots.want()
    await writer._snapshots.advance()
    writer.start()


@pytest.mark.parametrize("event", [b"new", b"a longer event than before"])
@pytest.mark.parametrize("remove", [snapshot_of_the_segment, snapshot_of_its_seal, snapshot_of_its_removal])
async def test_segment_of_a_used_name_is_restored(world: World, remove, event):
    async with killed(world) as running:
        client = await stored(running, *[b"removed"] * 3)
        await remove(running, client)
        await client.create(NAME)
        await write(client, NAME, [event])
        await running.flush()
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await shape(client, NAME) == (True, False, 0, len(event))
        assert await client.set_up(NAME, WRITER) == wire.NO_ATTRIBUTE_VALUE  # as of the snapshot before its bytes
        await running.flush()
        assert await client.read_all(NAME) == event


async def test_merge_into_a_segment_of_a_used_name_is_restored(world: World):
    source = f"{NAME}#transaction.{1:032x}"
    async with killed(world) as running:
        client = await stored(running, b"removed")
        await snapshot_of_the_segment(running, client)
        await client.create(source)
        await write(client, source, [b"merged"])
        await running.flush()
        await client.create(NAME)
        await client.call(wire.MergeSegments(4, NAME, source))
        await running.flush()
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await shape(client, NAME) == (True, False, 0, 6)
        assert await client.set_up(NAME, WRITER) == wire.NO_ATTRIBUTE_VALUE
        assert await client.read_all(NAME) == b"merged"


async def test_source_of_a_used_name_reaches_tier_2(world: World):
    """Its own removal, which waits for the merge, is not that of the earlier segment."""
    world.limits = replace(world.limits, object_bytes_max=4)  # so that it is flushed under its own name

    async with killed(world) as running:
        client = await stored(running, b"removed")
        await snapshot_of_the_segment(running, client)
        await client.create(NAME)
        await client.create(SEGMENTS[1])
        await write(client, SEGMENTS[1], [b"own"])
        await running.flush()
        owned = running.store.owned[0]
        await owned.writer.stop()
        await write(client, NAME, [b"merged"])
        await client.call(wire.MergeSegments(4, SEGMENTS[1], NAME))
        owned.writer.start()
        await running.flush()
    lose_volume(world)
    async with world.running() as running:
        assert await (await running.connect()).read_all(SEGMENTS[1]) == b"ownmerged"


async def test_a_segment_created_after_a_recovery_is_restored(world: World):
    """The log does not tell which names tier 2's snapshot has."""
    async with killed(world) as running:
        client = await stored(running, b"removed")
        await snapshot_of_the_segment(running, client)
        await running.until(lambda: not running.store.owned[0].container.metadata.deletions)
    async with killed(world) as running:
        await stored(running, b"new")
    lose_volume(world)
    async with world.running() as running:
        assert await (await running.connect()).read_all(NAME) == b"new"


@pytest.mark.parametrize("was_empty", [False, True])
async def test_record_of_a_removal_that_was_lost_is_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, was_empty: bool
):
    """The runs are gone, and the record of the evicted segment would be taken for that of the next one.

    `was_empty`: it was evicted before its first event. What the record tells is no less than what tier 2 has.
    """
    world.limits = replace(world.limits, idle_segment_s=IDLE_S, idle_segments_kept=0)
    world.maintenance = False
    reached: list[str] = []

    async def unheard(_directory: ChunkDirectory, name: str) -> None:
        reached.append(name)
        raise UnavailableError("no answer")

    async with killed(world) as running:
        if was_empty:
            client = await stored(running)
            await snapshot(running)
            assert await evict(running) == 1
            await write(client, NAME, [b"removed"] * 3)
            await running.flush()
        else:
            client = await stored(running, *[b"removed"] * 3)
        await snapshot(running)
        if not was_empty:
            assert await evict(running) == 1
        with monkeypatch.context() as patches:
            patches.setattr(ChunkDirectory, "remove_record", unheard)
            await client.call(wire.DeleteSegment(3, NAME))
            await running.until(lambda: reached != [])
    lose_volume(world)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(NAME)
        assert world.metadata.get(evicted_segment_key(NAME)) is None
        await write(client, NAME, [b"new"])
        await running.flush()
    lose_volume(world)
    async with world.running() as running:
        assert await (await running.connect()).read_all(NAME) == b"new"


async def test_segment_of_a_used_name_is_evicted_after_a_snapshot(world: World):
    """A restoration would take its record for that of the removed one."""
    world.limits = replace(world.limits, idle_segment_s=IDLE_S, idle_segments_kept=0)
    world.maintenance = False
    async with killed(world) as running:
        client = await stored(running, b"removed")
        await snapshot_of_the_segment(running, client)
        await running.until(lambda: not running.store.owned[0].container.metadata.deletions)
        await client.create(NAME)
        await client.call(wire.SealSegment(3, NAME))
        assert await evict(running) == 0
        await snapshot(running)
        assert await evict(running) == 1
    lose_volume(world)
    async with world.running() as running:
        assert await shape(await running.connect(), NAME) == (True, True, 0, 0)


async def test_a_snapshot_from_before_two_removals_is_too_old(world: World):
    async with world.running() as running:
        client = await running.connect()
        container, upkeep = running.store.owned[0].container, running.store.owned[0].writer._upkeep
        for event in (b"first", b"second"):
            await client.create(NAME)
            await write(client, NAME, [event])
            await running.flush()
            await client.call(wire.DeleteSegment(3, NAME))
            await running.until(lambda: not container.metadata.deletions)
        await client.create(NAME)
        upkeep.note_snapshot(ContainerSnapshot(2, {NAME: 1}, ()))
        assert upkeep.must_wait(container.metadata.segments[NAME])
        upkeep.note_snapshot(ContainerSnapshot(4, {}, ()))
        assert not upkeep.must_wait(container.metadata.segments[NAME])


async def test_a_used_name_costs_one_snapshot_a_new_one_none(world: World):
    async with world.running() as running:
        client = await running.connect()
        for name in SEGMENTS[:3]:
            await client.create(name)
            await write(client, name, [b"first"])
        await running.flush()
        assert pointer(world) is None
        await snapshot_of_the_segment(running, client)
        told = pointer(world)
        await client.create(NAME)
        for number in range(3):
            await write(client, NAME, [b"next"], first=number)
            await running.flush()
            told, before = pointer(world), told
            assert (told != before) is (number == 0)


async def test_a_drain_does_not_wait_for_time(world: World):
    """Its last bytes may be the first ones of a segment."""
    async with world.running() as running:
        client = await running.connect()
        for event in (b"removed", b"new"):
            await client.create(NAME)
            await write(client, NAME, [event])
            if event == b"removed":
                await snapshot_of_the_segment(running, client)
        assert await running.store.hand_over(0, 20.0)
    lose_volume(world)
    async with world.running() as running:
        assert await (await running.connect()).read_all(NAME) == b"new"
