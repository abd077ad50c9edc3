"""A link that takes effect when its runs have been moved on already."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from late_writes import LateWrites
from lost_volumes import entry_count, killed, lose_volume, snapshot, tell_no_more
from segment_writes import OTHER, created_segment, write
from store_world import RunningStore, World

from headrace import wire
from headrace.model.chunks import OFFSET_BEHIND_ALL, chunk_sort
from headrace.ports.metadata_store import Create, WriteConflictError
from headrace.segmentstore.tiering import chunk_directory

pytestmark = pytest.mark.anyio

OLDER, TARGET, SOURCE, LAST = (f"scope/stream/{number}.#epoch.0" for number in range(4))
PIECES = [b"%d" % number for number in range(7)]


def hurry(running: RunningStore) -> bool:
    running.world.clock.advance(0.05)
    running.store.owned[0].writer.wake()
    return True


async def test_late_link_to_moved_runs(make_world: type[World], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunk_directory, "MOVES_PER_WRITE_MAX", 2)
    monkeypatch.setattr(chunk_directory, "LINKED_MOVES_PER_WRITE_MAX", 2)
    world = make_world(container_count=1)
    async with killed(world) as running:
        client = await created_segment(running, OLDER, b"older")
        for name in (SOURCE, TARGET, LAST):
            await client.create(name)
        await snapshot(running)
        writer = running.store.owned[0].writer
        tell_no_more(running)
        for number, piece in enumerate(PIECES):
            await write(client, SOURCE, [piece], writer=OTHER, first=number)
            await running.flush()
        writer._limits = replace(world.limits, flush_age_s=0.0)
        late = LateWrites(world, Create, lambda key: key.sort == chunk_sort(OFFSET_BEHIND_ALL))
        assert isinstance(await client.call(wire.MergeSegments(3, TARGET, SOURCE)), wire.SegmentsMerged)
        await running.until(lambda: hurry(running) and bool(late.kept))
        late.answer_again()
        assert isinstance(await client.call(wire.MergeSegments(4, LAST, TARGET)), wire.SegmentsMerged)
        await running.until(lambda: hurry(running) and entry_count(world, TARGET) == 0 < entry_count(world, LAST))
        assert TARGET in running.store.owned[0].container.unanswered.names()  # it may still take effect
        with suppress(WriteConflictError):
            late.take_effect()
        assert entry_count(world, TARGET) == entry_count(world, SOURCE) == 0
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(OLDER) == b"older"
        assert await client.read_all(LAST) == b"".join(PIECES)
