"""A link whose runs are lost, and a snapshot that has the segment that had them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lost_volumes import NEVER_S, killed, lose_volume, snapshot
from segment_writes import OTHER, created_segment, write
from store_world import World

from headrace import wire
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Delete
from headrace.segmentstore.tiering import chunk_directory
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory

pytestmark = pytest.mark.anyio

OLDER, TARGET, SOURCE = (f"scope/stream/{number}.#epoch.0" for number in range(3))
PIECES = [b"%d" % number for number in range(7)]


@pytest.fixture
def world(make_world: type[World], monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(chunk_directory, "MOVES_PER_WRITE_MAX", 2)
    monkeypatch.setattr(chunk_directory, "LINKED_MOVES_PER_WRITE_MAX", 2)
    return make_world(container_count=1)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_link_to_lost_runs_costs_no_other_segment(world: World, monkeypatch: pytest.MonkeyPatch, is_lost: bool):
    """The snapshot has the source, but not the target.

    Stores up to 0.1.0 lost the runs if they were killed between two removals of runs of the source.
    """
    tried = []

    async def move_linked(_directory, target, _link, _runs):
        tried.append(target)
        raise UnavailableError("no answer")

    async with killed(world) as running:
        client = await created_segment(running, OLDER, b"older")
        await client.create(SOURCE)
        await snapshot(running)
        never = replace(world.limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)
        running.store.owned[0].writer._snapshots._limits = never
        for number, piece in enumerate(PIECES):
            await write(client, SOURCE, [piece], writer=OTHER, first=number)
            await running.flush()
        await client.create(TARGET)
        with monkeypatch.context() as patched:
            patched.setattr(ChunkDirectory, "move_linked", move_linked)
            assert isinstance(await client.call(wire.MergeSegments(3, TARGET, SOURCE)), wire.SegmentsMerged)

            def refused() -> bool:
                world.clock.advance(2e6)
                return bool(tried)

            await running.until(refused)
            first = world.metadata.query(f"chunks/{SOURCE}", limit=1).records[0]
    if is_lost:
        world.metadata.write(Delete(first.key, first.version))
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(OLDER) == b"older"
        if not is_lost:
            await client.create(SOURCE)
            await write(client, SOURCE, PIECES[::-1])
            assert await client.read_all(TARGET) == b"".join(PIECES)
            assert await client.read_all(SOURCE) == b"".join(PIECES[::-1])
