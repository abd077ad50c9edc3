"""Tier 2 has runs of a segment that its snapshot does not know: it came after that, and its log is lost."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from lost_volumes import NEVER_S, NO_NUMBER, SEGMENTS, killed, lose_volume, pointer, snapshot
from segment_writes import WRITER, write
from store_world import WAIT_S, World

from headrace import wire

pytestmark = pytest.mark.anyio


async def lose_after(world: World, **segments):
    """The last snapshot is older than these segments, given by name with the bytes of each of their runs."""
    usual = world.limits
    world.limits = replace(usual, snapshot_every_s=NEVER_S)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await snapshot(running)
        running.store.owned[0].writer._snapshots._limits = replace(
            usual, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S
        )
        for name, runs in segments.items():
            await client.create(name)
            for number, data in enumerate(runs):
                await write(client, name, [data], first=number)
                await running.flush()
    world.limits = usual
    lose_volume(world)


@pytest.mark.parametrize("asked", ["created", "written to", "read"])
async def test_segment_that_the_snapshot_did_not_know_is_found(world: World, caplog, asked):
    await lose_after(world, **{SEGMENTS[1]: [b"one", b"two"]})
    async with world.running() as running:
        client = await running.connect()
        if asked == "created":
            assert isinstance(await client.call(wire.CreateSegment(7, SEGMENTS[1], 0, 0)), wire.SegmentAlreadyExists)
        if asked != "read":
            assert await client.set_up(SEGMENTS[1], WRITER) == NO_NUMBER
            await client.append(WRITER, 2, b"three, which is longer than what is there")
            await running.flush()
        expected = b"onetwo" if asked == "read" else b"onetwothree, which is longer than what is there"
        assert await client.read_all(SEGMENTS[1]) == expected
        assert running.store.owned[0].container.failure is None
    assert "event=segment_found" in caplog.text
    async with world.running() as running:  # on its volume
        assert await (await running.connect()).read_all(SEGMENTS[1]) == expected


async def test_a_name_without_runs_is_no_segment(world: World, caplog):
    await lose_after(world)
    async with world.running() as running:
        client = await running.connect()
        assert isinstance(await client.call(wire.SetupAppend(6, WRITER, SEGMENTS[1])), wire.NoSuchSegment)
        await client.create(SEGMENTS[1])
        await write(client, SEGMENTS[1], [b"new"])
        await running.flush()
        assert await client.read_all(SEGMENTS[1]) == b"new"
    assert "event=segment_found" not in caplog.text


async def test_segment_of_a_container_without_snapshot_is_found(world: World, caplog):
    """The store was lost between the first flush of a new container and its first snapshot."""

    usual = world.limits
    world.limits = replace(usual, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"one"])
        await running.flush()
        assert pointer(world) is None
    world.limits = usual
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENTS[0]) == b"one"
        assert await client.set_up(SEGMENTS[0], WRITER) == NO_NUMBER
        await client.append(WRITER, 2, b"two")
        await running.flush()
        assert await client.read_all(SEGMENTS[0]) == b"onetwo"
    assert "event=segment_found" in caplog.text


async def test_outdated_log_is_discarded_even_without_a_snapshot(world: World):
    """Another store went on without the log, had served nothing yet, and is gone."""

    world.limits = replace(world.limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"past"])
    past = world.disk
    lose_volume(world)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], [b"new"])
        await running.flush()
    world.disk = past
    async with world.running() as running:
        assert await (await running.connect()).read_all(SEGMENTS[0]) == b"new"
        assert running.store.owned[0].container.failure is None


async def test_segment_created_during_a_look_up_stays(world: World):
    """The look-up is slow. The runs that it finds are those of the new segment, whose writers are known."""
    await lose_after(world)
    honest, answers, asked = world.metadata.get_many, [threading.Event(), threading.Event()], []

    def slow(keys):
        found = honest(keys)
        asked.append(keys)
        assert answers[min(len(asked), 2) - 1].wait(WAIT_S)
        return found

    async with world.running() as running:
        container = running.store.owned[0].container
        client = await running.connect()
        found, look_up = [], container.idle._look_up

        async def followed(name):
            """A request comes between the end of the look-up for the creation and the creation."""
            result = await look_up(name)
            if not found:
                found.append(asyncio.ensure_future(container.find(name)))
            return result

        container.idle._look_up, world.metadata.get_many = followed, slow
        answers[0].set()
        await client.create(SEGMENTS[1])
        await running.until(lambda: len(asked) == 2)
        await write(client, SEGMENTS[1], [b"one"])
        await running.flush()
        created = container.metadata.segments[SEGMENTS[1]]
        answers[1].set()
        assert await found[0] is created
        assert await (await running.connect()).set_up(SEGMENTS[1], WRITER) == 0
