"""Runs that came by a merge, moved in the directory: as few transactions as they take, and visible as a whole."""

from __future__ import annotations

import pytest
from store_world import World

from headrace.codec.container_snapshots import DirectoryPlace, MergedRange
from headrace.model.chunks import ChunkRun, is_link, packed_name
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_WRITE_MAX, ChunkDirectory
from headrace.segmentstore.tiering.merge_moves import move_merged

pytestmark = pytest.mark.anyio

TARGET, SOURCE = "scope/stream/0.#epoch.0", "scope/stream/0.#epoch.0#transaction." + "0" * 31 + "1"
OFFSET = 1000


@pytest.mark.parametrize(("run_count", "transactions"), [(1, 1), (49, 1), (50, 3), (98, 3), (99, 4), (200, 6)])
async def test_moves_take_as_few_transactions_as_they_can(world: World, run_count, transactions):
    sizes, visible = [], set()
    honest = world.metadata.write

    def counted(*writes):
        honest(*writes)
        sizes.append(len(writes))
        runs = world.metadata.query(f"chunks/{TARGET}", limit=1000).records
        visible.add(sum(record.body["length"] for record in runs))

    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    name = packed_name(0, 0, 1)
    runs = [(SOURCE, ChunkRun(3 * n, 3, name, 3 * n)) for n in range(run_count)]
    for first in range(0, run_count, RUNS_PER_WRITE_MAX):
        await directory.add(runs[first : first + RUNS_PER_WRITE_MAX], {name: 3 * run_count})
    world.metadata.write = counted
    merged = MergedRange(OFFSET, 3 * run_count, DirectoryPlace(SOURCE, 0), 7)
    moved = await move_merged(directory, TARGET, merged)
    assert [each.offset for each in moved] == [OFFSET + 3 * n for n in range(run_count)]
    assert await move_merged(directory, TARGET, merged) == moved[-1:]  # unheard, and asked for again
    assert len(sizes) == transactions
    assert max(sizes) <= WRITES_PER_TRANSACTION_MAX
    assert visible == {3 * run_count}
    assert not world.metadata.query(f"chunks/{SOURCE}", limit=1).records
    records = world.metadata.query(f"chunks/{TARGET}", limit=1000).records
    assert len(records) == run_count
    assert not any(is_link(record.body) for record in records)
