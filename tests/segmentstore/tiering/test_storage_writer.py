"""What a storage writer does before and after its container is handed over."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from lost_volumes import gone, pointer
from segment_writes import created_segment, write
from store_world import World

from headrace.model.errors import UnavailableError

pytestmark = pytest.mark.anyio

NAME = "scope/stream/0.#epoch.0"


@pytest.fixture
def world(make_world: type[World]) -> World:
    """A store that writes no snapshot by itself."""
    world = make_world(container_count=1, maintenance=False)
    world.limits = replace(world.limits, snapshot_every_s=1e9, snapshot_soon_s=1e9)
    return world


async def test_each_preparation_writes_a_snapshot(world: World):
    async with world.running() as running:
        client = await created_segment(running, NAME, b"one")
        writer = running.store.owned[0].writer
        for number in range(2):
            written = writer._snapshots.written
            await write(client, NAME, [b"two"], first=5 + number)
            await writer.prepare_drain()
            assert writer._snapshots.written > written
            assert not writer._hurried, "it works as before if nothing follows"


async def test_stopped_writer_has_nothing_to_prepare_or_drain(world: World):
    async with world.running(graceful=False) as running:
        writer = running.store.owned[0].writer
        await writer.stop()
        written = writer._snapshots.written
        await writer.prepare_drain()
        assert not await writer.drain()
        assert writer._snapshots.written == written


async def test_failed_container_is_not_served_again(world: World):
    async with world.running(graceful=False) as running:
        owned = running.store.owned[0]
        assert owned.writer.may_resume
        owned.container.log.fail(UnavailableError("the journal failed"))
        assert not owned.writer.may_resume
    world.failures.clear()


async def test_drain_leaves_nothing_in_the_log(world: World):
    """The next owner does not need this volume."""
    async with world.running(graceful=False) as running:
        await created_segment(running, NAME, b"data" * 1_000)
        owned = running.store.owned[0]
        held_bytes = owned.container.log.ledger.held_bytes
        assert await owned.writer.drain()
        assert not owned.container.dirty
        assert owned.container.log.ledger.held_bytes < held_bytes - 4_000, "only the checkpoint is left"
        assert pointer(world).clean
        assert not owned.writer.may_resume, "tier 2 says that another store may own it"


@pytest.mark.parametrize("stopped", [False, True])
async def test_writer_works_after_a_drain_that_was_cancelled(world: World, stopped: bool):
    async with world.running() as running:
        client = await created_segment(running, NAME, b"one")
        writer, write_record = running.store.owned[0].writer, world.metadata.write
        world.metadata.write = gone  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.05)
        assert writer.may_resume
        if stopped:
            await writer.stop()  # as a drain does before its last snapshot
        world.metadata.write = write_record  # type: ignore[method-assign]
        writer.resume()
        assert not writer._hurried
        await write(client, NAME, [b"two"], first=5)
        await running.flush()
        assert await client.read_all(NAME) == b"onetwo"
