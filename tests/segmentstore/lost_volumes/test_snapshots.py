"""The snapshots from which a lost volume is restored: when they are written, by whom, and how often."""

from __future__ import annotations

import asyncio
import threading

import pytest
from lost_volumes import SEGMENTS, killed, passing_time_until, pointer, snapshot
from segment_writes import write
from store_world import World

from headrace import wire
from headrace.model.errors import FencedError, UnavailableError
from headrace.ports.metadata_store import Write
from headrace.segmentstore.tiering.snapshot_store import UNNAMED_MAX, SnapshotStore

pytestmark = pytest.mark.anyio


async def test_a_deposed_owner_writes_no_pointer(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await snapshot(running)
        told, container = pointer(world), running.store.owned[0].container
        world.claim(0)
        await client.create(SEGMENTS[1])
        await passing_time_until(running, lambda: container.failure is not None)
        assert isinstance(container.failure, FencedError)
    assert pointer(world) == told
    late = SnapshotStore(world.metadata, world.chunks, 0, told.epoch)
    late._written = 100  # names that the owner of this epoch has not used
    with pytest.raises(FencedError):
        await late.replace([b"late"], clean=True)
    assert pointer(world) == told
    world.chunks.read_now(told.object_name, 0, told.length)


@pytest.mark.parametrize("arrives", [True, False])
async def test_an_interrupted_write_leaves_no_object(world: World, monkeypatch: pytest.MonkeyPatch, arrives: bool):
    """A stop may cancel a snapshot between its object and its pointer. The last one removes what is left then."""
    store = SnapshotStore(world.metadata, world.chunks, 0, world.claim(0))
    await store.replace([b"first"], clean=False)

    def unanswered(*writes: Write) -> None:
        if arrives:
            honest(*writes)
        raise UnavailableError("no answer")

    honest = world.metadata.write
    with monkeypatch.context() as patched:
        patched.setattr(world.metadata, "write", unanswered)
        with pytest.raises(UnavailableError):
            await store.replace([b"second"], clean=False)
    await store.replace([b"third"], clean=True)
    assert [each.name for each in await world.chunks.list("snapshots/")] == [pointer(world).object_name]


async def test_few_objects_are_remembered_while_tier_2_fails(world: World, monkeypatch: pytest.MonkeyPatch):
    store = SnapshotStore(world.metadata, world.chunks, 0, world.claim(0))

    def away(*_writes: Write) -> None:
        raise UnavailableError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(world.metadata, "write", away)
        for _ in range(UNNAMED_MAX + 5):
            with pytest.raises(UnavailableError):
                await store.replace([b"lost"], clean=False)
    await store.replace([b"last"], clean=True)
    assert len(await world.chunks.list("snapshots/")) == 7, "the last one, and the oldest that were forgotten"


async def test_a_snapshot_waits_for_the_log(world: World):
    held = threading.Event()

    async with world.running() as running:
        client = await running.connect()
        disk = world.disk
        disk.before = lambda step: held.wait(20) if step == "sync" else None
        client.send(wire.CreateSegment(7, SEGMENTS[0], 0, 0))
        container = running.store.owned[0].container
        await running.until(lambda: SEGMENTS[0] in container.metadata.segments)
        world.clock.advance(100)
        for _ in range(50):
            running.store.owned[0].writer.wake()
            await asyncio.sleep(0.002)
        assert not container.log.is_durable
        assert pointer(world) is None
        held.set()
        await running.until(lambda: pointer(world) is not None)


async def test_a_lost_answer_of_the_pointer_write_is_got_over(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        honest = world.metadata.write

        def answers_get_lost(*writes):
            honest(*writes)
            raise UnavailableError("the answer was lost")

        world.metadata.write = answers_get_lost
        await passing_time_until(running, lambda: pointer(world) is not None)
        told = pointer(world)
        world.metadata.write = honest
        await running.until(lambda: pointer(world) != told)
        assert running.store.owned[0].container.failure is None
    assert pointer(world).clean


async def test_the_number_of_puts_follows_time(world: World):
    puts = []
    honest = world.chunks.put

    async def counted(name, parts):
        puts.append(name)
        await honest(name, parts)

    world.chunks.put = counted

    async def rest(running):
        for _ in range(20):
            running.store.owned[0].writer.wake()
            await asyncio.sleep(0.001)

    async with killed(world) as running:
        client = await running.connect()
        for segment in SEGMENTS:
            await client.create(segment)
        await rest(running)
        assert puts == []
        await snapshot(running)
        assert len(puts) == 1  # for six creations
        await write(client, SEGMENTS[0], [b"data"] * 300)
        world.clock.advance(world.limits.snapshot_every_s / 2)
        await rest(running)
        assert len(puts) == 1
        await snapshot(running)
        assert len(puts) == 2  # for three hundred appends
        for _ in range(5):
            world.clock.advance(world.limits.snapshot_every_s)
            await rest(running)
        assert len(puts) == 2  # nothing has changed
