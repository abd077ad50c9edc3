"""What tier 2's snapshot decides about runs of used names and truncated segments, and which runs a trim leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from segment_writes import created_segment, write
from store_world import RunningStore, World

from headrace import wire
from headrace.codec.container_snapshots import ContainerSnapshot, DirectoryPlace, MergedRange, SegmentSnapshot
from headrace.model.chunks import ChunkRun, chunk_run, is_link, packed_name
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.tiering import directory_upkeep
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_WRITE_MAX, ChunkDirectory
from headrace.segmentstore.tiering.compactor import SmallRuns
from headrace.segmentstore.tiering.directory_upkeep import DirectoryUpkeep, move_merged

pytestmark = pytest.mark.anyio

NAME = "scope/stream/0.#epoch.0"


@pytest.fixture
def world(make_world: type[World]) -> World:
    """A store that does nothing in tier 2 by itself while its storage writer is stopped."""
    world = make_world(container_count=1, maintenance=False)
    world.limits = replace(world.limits, snapshot_every_s=1e9, snapshot_soon_s=1e9)
    return world


def upkeep_of(running: RunningStore) -> tuple[SegmentContainer, DirectoryUpkeep]:
    container = running.store.owned[0].container
    directory = ChunkDirectory(running.world.metadata, 0, container.epoch, running.world.clock)
    return container, DirectoryUpkeep(container, directory, SmallRuns(32), 1 << 20, lambda: None, covered=True)


def run_starts(world: World) -> list[int]:
    records = world.metadata.query(f"chunks/{NAME}", limit=100).records
    return [chunk_run(record.key.sort, record.body).offset for record in records]


def told(number: int, start: int = 0) -> SegmentSnapshot:
    return SegmentSnapshot(number, NAME, start, 6, sealed=False, last_modified_ms=0, attributes={})


def of_segments(*segments: SegmentSnapshot) -> ContainerSnapshot:
    return ContainerSnapshot(100, {}, segments)


SnapshotOf = Callable[[int], ContainerSnapshot]


@pytest.mark.parametrize(
    ("snapshot_of", "must_wait"),
    [
        (lambda _removed: of_segments(), False),
        (lambda removed: of_segments(told(removed)), True),
        (lambda removed: of_segments(told(removed - 1)), True),
        (lambda removed: of_segments(told(removed + 1)), False),
        (lambda removed: ContainerSnapshot(100, {NAME: removed}, ()), True),
        (lambda removed: ContainerSnapshot(100, {NAME: removed - 1}, ()), True),
        (lambda removed: ContainerSnapshot(100, {NAME: removed + 1}, ()), False),
    ],
    ids=["nothing", "it", "one before it", "the new one", "its removal", "one before", "the removal of the new one"],
)
async def test_snapshot_with_a_removed_segment_delays_the_next(world: World, snapshot_of: SnapshotOf, must_wait: bool):
    """A store that restores this snapshot would take the runs of the new segment for those of the removed one."""
    async with world.running(graceful=False) as running:
        client = await created_segment(running, NAME, b"one")
        await running.flush()
        await running.store.owned[0].writer.stop()
        container, upkeep = upkeep_of(running)
        number = container.metadata.segments[NAME].number
        assert isinstance(await client.call(wire.DeleteSegment(3, NAME)), wire.SegmentDeleted)
        while await upkeep.forget_removed(()):
            pass
        await client.create(NAME)
        segment = container.metadata.segments[NAME]
        assert upkeep.must_wait(segment)
        upkeep.note_snapshot(snapshot_of(number))
        assert upkeep.must_wait(segment) is must_wait


@pytest.mark.parametrize(
    ("snapshot_of", "left"),
    [
        (lambda number: of_segments(told(number, start=6)), []),
        (lambda number: of_segments(told(number, start=3)), [3]),
        (lambda number: of_segments(told(number - 1, start=6)), [3]),
        (lambda _number: of_segments(), [3]),
    ],
    ids=["this start", "an earlier start", "another segment", "nothing"],
)
async def test_last_run_stays_until_a_snapshot_has_the_start(world: World, snapshot_of: SnapshotOf, left: list[int]):
    """Without it a store that has lost the log would take the segment for a removed one."""
    async with world.running(graceful=False) as running:
        client = await created_segment(running, NAME, b"one")
        await running.flush()
        await write(client, NAME, [b"two"], first=1)
        await running.flush()
        await running.store.owned[0].writer.stop()
        container, upkeep = upkeep_of(running)
        assert isinstance(await client.call(wire.TruncateSegment(3, NAME, 6)), wire.SegmentTruncated)
        upkeep.note_snapshot(snapshot_of(container.metadata.segments[NAME].number))
        while await upkeep.trim_truncated():
            pass
        assert run_starts(world) == left


@pytest.mark.parametrize("page", [1, 2, 3, 98])
async def test_trim_leaves_no_truncated_run_of_many(world: World, monkeypatch: pytest.MonkeyPatch, page: int):
    monkeypatch.setattr(directory_upkeep, "RUNS_PER_WRITE_MAX", page)
    async with world.running(graceful=False) as running:
        client = await created_segment(running, NAME)
        for number in range(6):
            await write(client, NAME, [b"one"], first=number)
            await running.flush()
        assert isinstance(await client.call(wire.TruncateSegment(3, NAME, 15)), wire.SegmentTruncated)
        await running.flush()
        assert run_starts(world) == [15]


async def test_bytes_truncated_before_their_flush_are_trimmed(world: World):
    """They are flushed nevertheless, and the trim before found nothing of them."""
    world.limits = replace(world.limits, object_bytes_max=3)
    async with world.running(graceful=False) as running:
        client = await created_segment(running, NAME, b"one", b"two")
        writer = running.store.owned[0].writer
        await writer.stop()
        assert isinstance(await client.call(wire.TruncateSegment(3, NAME, 3)), wire.SegmentTruncated)
        await writer.run_pass()
        assert run_starts(world) == []
        writer.start()
        await running.flush()
        assert run_starts(world) == [3]


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
