"""What a storage writer does before and after its container is handed over."""

from __future__ import annotations

from dataclasses import replace

import pytest
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
