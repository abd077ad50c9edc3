"""What tier 2's snapshot decides about runs of used names and truncated segments, and which runs a trim leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from segment_writes import created_segment, write
from store_world import RunningStore, World

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.container_snapshots import ContainerSnapshot, DirectoryPlace, MergedRange, SegmentSnapshot
from headrace.codec.data_frames import CreateOperation, DeleteOperation, MergeOperation
from headrace.model.chunks import OFFSET_BEHIND_ALL, ChunkRun, LogPlace, RunLink, chunk_run, is_link, packed_name
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.names import transaction_segment_name, transient_segment_name
from headrace.model.segment_attributes import NO_VALUE
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX, ItemRefusedError
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.container import Removals, SegmentContainer
from headrace.segmentstore.containers.metadata import NAME_BYTES_MAX, ContainerMetadata
from headrace.segmentstore.containers.segment import RecordedState, Segment
from headrace.segmentstore.containers.unanswered_writes import UnansweredWrites
from headrace.segmentstore.tiering import chunk_directory, directory_upkeep
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_WRITE_MAX, ChunkDirectory
from headrace.segmentstore.tiering.compactor import SmallRuns
from headrace.segmentstore.tiering.directory_upkeep import (
    REMOVALS_PER_PASS_MAX,
    TRIMMED_PER_PASS_MAX,
    DirectoryUpkeep,
    FlushMark,
    complete_link,
    follow_link,
    move_merged,
)

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


OBJECT = packed_name(0, 0, 1)


async def directory_with(world: World, name: str, *starts: int) -> ChunkDirectory:
    """With runs of three bytes."""
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    await directory.add([(name, ChunkRun(start, 3, OBJECT, start)) for start in starts], {OBJECT: 100})
    return directory


async def starts_of(directory: ChunkDirectory, name: str) -> list[int]:
    return [run.offset for run in await directory.page(name)]


async def test_move_takes_only_the_runs_of_the_merge(world: World):
    directory = await directory_with(world, SOURCE, 0, 3, 6)
    await directory.add([(SOURCE, ChunkRun(9, 1, OBJECT, 9))], {OBJECT: 100})
    moved = await move_merged(directory, TARGET, MergedRange(OFFSET, 6, DirectoryPlace(SOURCE, 3), 7))
    assert moved is not None
    assert [(run.offset, run.position) for run in moved] == [(OFFSET, 3), (OFFSET + 3, 6)]
    assert await starts_of(directory, SOURCE) == [0, 9]
    assert await directory.page(TARGET) == moved


@pytest.mark.parametrize(
    ("name", "starts"), [(SOURCE, [0]), (SOURCE, [3]), (SOURCE, []), (TARGET, [OFFSET - 3]), (TARGET, [OFFSET])]
)
async def test_merge_of_missing_bytes_moves_nothing(world: World, name: str, starts: list[int]):
    directory = await directory_with(world, name, *starts)
    assert await move_merged(directory, TARGET, MergedRange(OFFSET, 6, DirectoryPlace(SOURCE, 0), 7)) is None
    assert await starts_of(directory, name) == starts


@pytest.mark.parametrize("is_forwarding", [False, True])
async def test_link_is_completed_by_either_name(world: World, *, is_forwarding: bool):
    directory = await directory_with(world, SOURCE, 0, 3)
    link = RunLink(OFFSET, 6, SOURCE, 0, 7)
    await directory.link(TARGET, link, (await directory.page(SOURCE))[0])
    name = SOURCE if is_forwarding else TARGET
    last = await directory.last_entry(name)
    assert last == (RunLink(OFFSET_BEHIND_ALL, 6, TARGET, OFFSET, 7) if is_forwarding else link)
    assert isinstance(last, RunLink)
    assert await complete_link(directory, name, last)
    assert await starts_of(directory, TARGET) == [OFFSET, OFFSET + 3]
    assert not await complete_link(directory, name, last), "its runs are there"
    await directory.remove(TARGET, await directory.page(TARGET))
    assert not await complete_link(directory, name, last)


async def test_link_leads_to_its_own_runs_only(world: World):
    directory = await directory_with(world, SOURCE, 0, 3, 6)
    await directory.add([(SOURCE, ChunkRun(9, 1, OBJECT, 9))], {OBJECT: 100})
    await directory.link(TARGET, RunLink(OFFSET, 6, SOURCE, 3, 7), (await directory.page(SOURCE))[1])
    link = await directory.last_entry(TARGET)
    assert isinstance(link, RunLink)
    moved = await follow_link(directory, TARGET, link)
    assert [run.offset for run in moved] == await starts_of(directory, TARGET) == [OFFSET, OFFSET + 3]
    assert await starts_of(directory, SOURCE) == [0, 9]


async def test_late_link_to_moved_runs_is_refused(world: World, monkeypatch: pytest.MonkeyPatch):
    """The first of them have left the target again, so that the link would lead to nothing."""
    monkeypatch.setattr(chunk_directory, "MOVES_PER_WRITE_MAX", 1)
    directory = await directory_with(world, SOURCE, 0, 3, 6)
    honest = directory.link

    async def late(target: str, link: RunLink, first: ChunkRun) -> bool:
        await directory.remove(SOURCE, (await directory.page(SOURCE))[:1])
        return await honest(target, link, first)

    monkeypatch.setattr(directory, "link", late)
    with pytest.raises(UnavailableError, match="has changed since it was read"):
        await move_merged(directory, TARGET, MergedRange(OFFSET, 9, DirectoryPlace(SOURCE, 0), 7))
    assert await directory.last_entry(TARGET) is None
    assert await starts_of(directory, SOURCE) == [3, 6]


async def test_link_to_lost_runs_is_corrupt(world: World):
    directory = await directory_with(world, SOURCE, 0, 3)
    first, second = await directory.page(SOURCE)
    link = RunLink(OFFSET, 6, SOURCE, 0, 7)
    await directory.link(TARGET, link, first)
    with pytest.raises(UnavailableError, match="has changed since it was read"):
        await follow_link(directory, TARGET, RunLink(OFFSET, 6, SOURCE, 1, 7))
    await directory.remove(SOURCE, [first])
    last_entry = await directory.last_entry(TARGET)
    assert isinstance(last_entry, RunLink)
    with pytest.raises(CorruptError, match=f"has lost runs of {SOURCE} from 0 on"):
        await follow_link(directory, TARGET, last_entry)
    assert await starts_of(directory, SOURCE) == [second.offset]
    await directory.remove(SOURCE, [second])
    with pytest.raises(CorruptError, match=f"has lost runs of {SOURCE} from 0 on"):
        await follow_link(directory, TARGET, last_entry)


def upkeep_with(world: World, directory: ChunkDirectory, *removed: str) -> tuple[DirectoryUpkeep, list[str]]:
    """The upkeep of a container that has removed segments of these names, and the names that are free again."""
    metadata, free = ContainerMetadata(0, BlockPool(1 << 20, 64 << 10), lambda _segment: None), list[str]()
    for number, name in enumerate(removed, 1):
        metadata.apply(CreateOperation(number, name, (), 0), 0, 1)
        metadata.apply(DeleteOperation(number, 0), 0, 1)
    container: Any = SimpleNamespace(
        container=0,
        metadata=metadata,
        dirty={},
        log=SimpleNamespace(durable_entry=0),
        unanswered=UnansweredWrites(world.clock),
        removals=Removals(lambda: asyncio.get_running_loop().create_future()),
        note_deletion_stored=lambda name: (free.append(name), metadata.deletions.pop(name)),
    )
    return DirectoryUpkeep(container, directory, SmallRuns(32), 100, lambda: None, covered=True), free


async def entries(directory: ChunkDirectory, name: str) -> int:
    return sum(map(len, await directory.all_entries(name, 100)))


@pytest.mark.parametrize("page", [2, RUNS_PER_WRITE_MAX])
@pytest.mark.parametrize("removed", [TARGET, SOURCE])
async def test_linked_runs_are_moved_before_they_are_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, removed: str, page: int
):
    """Otherwise a link would lead to nothing, or runs would belong to no segment. The link may be behind the page."""
    monkeypatch.setattr(directory_upkeep, "RUNS_PER_WRITE_MAX", page)
    directory = await directory_with(world, SOURCE, 0, 3)
    await directory.link(TARGET, RunLink(OFFSET, 6, SOURCE, 0, 7), (await directory.page(SOURCE))[0])
    upkeep, free = upkeep_with(world, directory, removed)
    assert await upkeep.forget_removed(())
    assert free == [], "the runs were moved, and nothing was removed"
    assert await starts_of(directory, TARGET) == [OFFSET, OFFSET + 3]
    while not free:
        assert await upkeep.forget_removed(())
    assert free == [removed]
    assert await starts_of(directory, TARGET) == ([] if removed == TARGET else [OFFSET, OFFSET + 3])
    assert await entries(directory, SOURCE) == 0


@pytest.mark.parametrize("page", [2, 3])
async def test_entries_behind_a_full_page_are_removed_too(world: World, monkeypatch: pytest.MonkeyPatch, page: int):
    """The runs behind both links are lost. Left there, the second one would be that of the next segment of the name."""
    monkeypatch.setattr(directory_upkeep, "RUNS_PER_WRITE_MAX", page)
    directory = await directory_with(world, SOURCE, 0, 3)
    await directory.add([(TARGET, ChunkRun(0, 3, OBJECT, 6))], {OBJECT: 100})
    await directory.link(TARGET, RunLink(3, 6, SOURCE, 0, 7), (await directory.page(SOURCE))[0])
    await directory.add([("other", ChunkRun(0, 3, OBJECT, 9))], {OBJECT: 100})
    await directory.link("other", RunLink(3, 9, TARGET, 0, 8), (await directory.page(TARGET))[0])
    await directory.remove(SOURCE, await directory.page(SOURCE))
    last_entry = await directory.last_entry("other")
    assert isinstance(last_entry, RunLink)
    await directory.remove("other", [], [last_entry])
    upkeep, free = upkeep_with(world, directory, TARGET)
    for _ in range(5):
        await upkeep.forget_removed(())
        assert TARGET not in free or await entries(directory, TARGET) == 0
    assert free == [TARGET]


class ScriptedDirectory:
    """Has these runs, by segment. `refused` are names that it refuses for good; `asked` are those it was asked for."""

    def __init__(self, **runs: list[ChunkRun]) -> None:
        self.runs = runs
        self.refused: dict[str, Exception] = {}
        self.asked: list[str] = []
        self.records_removed: list[str] = []

    async def page(self, name: str, *, limit: int) -> list[ChunkRun]:
        self.asked.append(name)
        return self.runs.get(name, [])[:limit]

    async def all_entries(self, name: str, limit: int) -> tuple[list[ChunkRun], list[RunLink]]:
        return await self.page(name, limit=limit), []

    async def last_entry(self, name: str) -> ChunkRun | None:
        return next(reversed(self.runs.get(name, [])), None)

    async def entry_before(self, name: str, end: int) -> ChunkRun | None:
        return next((run for run in reversed(self.runs.get(name, [])) if run.offset < end), None)

    async def remove(self, name: str, runs: list[ChunkRun], links: object = ()) -> int:
        if name in self.refused:
            raise self.refused[name]
        del self.runs.get(name, [])[: len(runs)]
        return len(runs)

    async def remove_record(self, name: str) -> None:
        self.records_removed.append(name)


class Made:
    """A container with a target of 3 bytes, into which a source of 4 bytes is merged, and the upkeep of its directory.

    The merge is accepted and not durable. Tier 2 has nothing.
    """

    def __init__(self, *, covered: bool = True) -> None:
        self.pool = BlockPool(1 << 20, 64 << 10)
        self.metadata = ContainerMetadata(0, self.pool, lambda _segment: None)
        for number, name in enumerate((TARGET, SOURCE), 1):
            self.metadata.apply(CreateOperation(number, name, (), 0), 0, 1)
        self.target, self.source = (self.metadata.by_number(number) for number in (1, 2))
        self.append(self.target, 3)
        self.append(self.source, 4)
        self.settle = self.metadata.apply(MergeOperation(1, 2, 3, 4, (), 0), 5, 1)
        self.stored: list[tuple[int, int]] = []
        self.told_stored = 0
        self.known: Any = lambda epoch, entry: (epoch, entry) == (1, 9)
        self.container: Any = SimpleNamespace(
            container=0,
            metadata=self.metadata,
            dirty={1: self.target},
            log=SimpleNamespace(ledger=SimpleNamespace(knows=self.known), durable_entry=9),
            unanswered=UnansweredWrites(ManualClock()),
            removals=Removals(lambda: asyncio.get_running_loop().create_future()),
            stored_is_durable=True,
            note_deletion_stored=self.note_deletion_stored,
            note_stored=self.stored.extend,
        )
        self.forgotten: list[str] = []
        self.small_runs = SmallRuns(32)
        self.noted: list[tuple[str, int]] = []
        self.small_runs.note = lambda name, length: self.noted.append((name, length))  # type: ignore[method-assign]
        self.directory = ScriptedDirectory()
        directory: Any = self.directory
        self.upkeep = DirectoryUpkeep(self.container, directory, self.small_runs, 100, self.told, covered=covered)

    def told(self) -> None:
        self.told_stored += 1

    def note_deletion_stored(self, name: str) -> None:
        self.forgotten.append(name)
        del self.metadata.deletions[name]

    def removed(self, *names: str, entry: int = 9) -> None:
        """Create and remove segments; the log has the removals in this entry."""
        for name in names:
            number = self.metadata.next_number
            self.metadata.apply(CreateOperation(number, name, (), 0), 0, 1)
            self.metadata.apply(DeleteOperation(number, 0), entry, 1)

    def unanswered(self, name: str) -> None:
        with suppress(UnavailableError), self.container.unanswered.noted(name):
            raise UnavailableError("no answer")

    def truncated(self, count: int) -> None:
        """Have segments of a run each, all of whose bytes are before their start, which tier 2's snapshot has."""
        self.container.dirty.clear()
        for number in range(10, 10 + count):
            self.metadata.apply(CreateOperation(number, str(number), (), 0), 0, 1)
            segment = self.container.dirty[number] = self.metadata.by_number(number)
            segment.tiered.length = segment.durable.start_offset = segment.tiered.told_start = 3
            self.directory.runs[str(number)] = [run_of(0, 3)]

    def append(self, segment: Segment, length: int) -> None:
        reserved = self.pool.reserve(length)
        assert reserved is not None
        segment.index.add(segment.accepted.length, reserved, 0, (1, NO_VALUE, 1))
        segment.accepted.length = segment.durable.length = segment.accepted.length + length


def run_of(offset: int, length: int, logged: tuple[int, int] | None = None) -> ChunkRun:
    return ChunkRun(offset, length, OBJECT, 0, logged=None if logged is None else LogPlace(*logged))


def test_run_of_a_source_is_stored_before_its_merge_is_durable():
    made = Made()
    made.upkeep.take_as_stored(made.source, run_of(0, 4))
    assert (made.source.tiered.length, made.noted) == (4, [(SOURCE, 4)])
    made.upkeep.take_as_stored(made.source, run_of(0, 4))
    assert made.noted == [(SOURCE, 4)], "it is known"


@pytest.mark.parametrize(
    ("run", "is_durable", "complaint"),
    [
        (run_of(0, 7), False, "the log only up to 3: acknowledged bytes are missing"),
        (run_of(0, 8), True, "the log only up to 7: acknowledged bytes are missing"),
        (run_of(0, 2), True, "ends at 2, inside an append"),
        (run_of(0, 3, (1, 8)), True, "entry 8 of epoch 1, which this log has lost"),
    ],
)
def test_run_that_contradicts_the_log_is_corrupt(run: ChunkRun, is_durable: bool, complaint: str):
    made = Made()
    if is_durable:
        made.settle()
    with pytest.raises(CorruptError, match=complaint):
        made.upkeep.take_as_stored(made.target, run)
    assert made.target.tiered.length == 0


@pytest.mark.parametrize(("start", "trimmed"), [(0, 2), (1, 0), (3, 0)])
def test_run_from_before_the_start_is_trimmed_again(start: int, trimmed: int):
    made = Made()
    made.target.tiered.trimmed_offset, made.target.accepted.start_offset = 2, start
    made.upkeep.take_as_stored(made.target, run_of(0, 3, (1, 9)))
    assert (made.target.tiered.length, made.target.tiered.trimmed_offset) == (3, trimmed)


def test_runs_that_came_unheard_before_a_run_are_trimmed_again():
    """A crash has undone what the log knew of a move, and of its runs only the last one is found."""
    made = Made()
    made.settle()
    made.target.tiered.trimmed_offset = made.target.accepted.start_offset = 3
    made.upkeep.take_as_stored(made.target, run_of(3, 4))
    assert (made.target.tiered.length, made.target.tiered.trimmed_offset) == (7, 0)


def test_start_is_compared_with_a_run_where_its_bytes_belong():
    made = Made()
    made.target.tiered.trimmed_offset, made.target.accepted.start_offset = 2, 3
    made.upkeep.take_as_stored(made.source, run_of(0, 4))
    made.upkeep.take_as_stored(made.source, run_of(2, 2))
    assert made.target.tiered.trimmed_offset == 2


def test_snapshot_may_tell_of_segments_that_are_not_in_memory():
    made = Made()
    made.upkeep.note_snapshot(of_segments(replace(told(1), name=OTHER), told(1, start=2)))
    assert made.target.tiered.told_start == 2


def test_segment_rests_when_nothing_is_left_to_do():
    made = Made()
    made.settle()
    target = made.target
    target.untiered_since_s = 1.0
    target.accepted.start_offset = 2
    for is_left, change in [
        (True, lambda: made.upkeep.take_as_stored(target, run_of(0, 3))),
        (True, lambda: made.upkeep.take_as_stored(made.source, run_of(0, 4))),
        (True, lambda: target.advance_tiered(7)),
        (True, lambda: setattr(target, "quarantined", True)),
        (True, lambda: setattr(target.tiered, "trimmed_offset", 2)),
        (False, lambda: setattr(target, "quarantined", False)),
    ]:
        change()
        made.upkeep.rest_segments()
        assert (1 in made.container.dirty) is is_left
    assert target.untiered_since_s is None


def test_all_segments_without_work_rest():
    made = Made()
    made.truncated(3)
    made.container.dirty[11].accepted.start_offset = 1
    made.upkeep.rest_segments()
    assert list(made.container.dirty) == [11]


def test_removed_segment_rests_once_its_removal_is_durable():
    made = Made()
    made.settle()
    made.metadata.apply(DeleteOperation(1, 0), 10, 1)
    made.upkeep.rest_segments()
    assert 1 in made.container.dirty
    made.container.log.durable_entry = 10
    made.upkeep.rest_segments()
    assert not made.container.dirty


async def test_runs_are_removed_once_the_removal_is_durable():
    made = Made()
    made.removed("a")
    made.removed("late", entry=10)
    made.directory.runs = {"a": [run_of(0, 3)], "late": [run_of(0, 3)]}
    assert await made.upkeep.forget_removed(())
    assert (made.forgotten, made.directory.runs["a"]) == ([SOURCE, "a"], [])
    assert not await made.upkeep.forget_removed(())
    made.container.log.durable_entry = 10
    assert await made.upkeep.forget_removed(())
    assert made.forgotten[2:] == ["late"]
    assert made.directory.records_removed == [], "there are none"


async def test_runs_that_are_still_needed_or_may_come_are_left():
    made = Made()
    made.removed("under way", "unanswered", "refused", "free")
    made.source.tiered.length = 1  # so that the merge is flushed under the name of its source
    made.container.removals.refuse("refused")
    made.unanswered("unanswered")
    assert await made.upkeep.forget_removed({"under way"})
    assert made.directory.asked == made.forgotten == ["free"]
    assert not await made.upkeep.forget_removed({"under way"})


async def test_removal_of_many_runs_takes_several_passes():
    made = Made()
    made.removed("many")
    made.directory.runs["many"] = [run_of(3 * number, 3) for number in range(RUNS_PER_WRITE_MAX + 1)]
    assert await made.upkeep.forget_removed({SOURCE})
    assert (len(made.directory.runs["many"]), made.forgotten) == (1, [])
    assert await made.upkeep.forget_removed({SOURCE})
    assert (len(made.directory.runs["many"]), made.forgotten) == (0, ["many"])


async def test_pass_removes_a_bounded_number_of_segments():
    made = Made()
    names = [f"segment {number}" for number in range(REMOVALS_PER_PASS_MAX + 1)]
    made.removed(*names)
    assert await made.upkeep.forget_removed({SOURCE})
    assert made.forgotten == names[:-1]
    assert await made.upkeep.forget_removed({SOURCE})
    assert made.forgotten == names


async def test_only_segments_that_may_have_a_record_lose_it():
    made = Made()
    made.metadata.has_records = True
    transient = transient_segment_name(TARGET, 1, 2)
    made.removed("a", transient)
    assert await made.upkeep.forget_removed({SOURCE})
    assert made.forgotten == ["a", transient]
    assert made.directory.records_removed == ["a"]


async def test_merged_sources_lose_their_records_first():
    """A restoration would take each for an open transaction. A crash may undo a merge that is not durable."""
    made = nested()
    first = made.source
    made.metadata.apply(CreateOperation(4, transaction_segment_name(OTHER, 1), (), 0), 0, 1)
    made.append(second := made.metadata.by_number(4), 2)
    made.metadata.apply(MergeOperation(3, 4, 12, 2, (), 0), 10, 2)()
    for segment in (made.target, first, second):
        segment.recorded = RecordedState(1, b"")
    await made.upkeep.forget_removed({TARGET, SOURCE})
    assert made.directory.records_removed == [SOURCE]
    assert first.recorded is None
    assert None not in (made.target.recorded, second.recorded), "no transaction, and not durable"
    made.container.log.durable_entry = 10
    first.recorded = RecordedState(2, b"")
    await made.upkeep.forget_removed({TARGET, SOURCE})
    assert made.directory.records_removed == [SOURCE, SOURCE, second.name]


async def test_removal_that_tier_2_refuses_is_not_tried_again():
    made = Made()
    long_name = "x" * (NAME_BYTES_MAX + 1)
    made.removed("refused", long_name, "other")
    made.directory.refused = dict.fromkeys(("refused", long_name), ItemRefusedError("too large"))
    assert await made.upkeep.forget_removed({SOURCE})
    assert made.forgotten == [long_name, "other"], "tier 2 never had anything of a name that is too long"
    assert made.container.removals.refused == {"refused"}
    assert not await made.upkeep.forget_removed({SOURCE})


async def test_pass_looks_at_a_bounded_number_of_truncated_segments():
    made = Made()
    made.truncated(TRIMMED_PER_PASS_MAX + 2)
    names = sorted(made.directory.runs)
    made.container.dirty[11].quarantined = True
    assert await made.upkeep.trim_truncated()
    assert made.directory.asked == [name for name in names if name != "11"][:TRIMMED_PER_PASS_MAX]
    made.directory.asked.clear()
    assert await made.upkeep.trim_truncated()
    assert made.directory.asked == names[-1:]
    made.directory.asked.clear()
    assert not await made.upkeep.trim_truncated()
    assert made.directory.asked == [], "all are trimmed"
    assert made.directory.runs["11"] == [run_of(0, 3)]


@pytest.mark.parametrize("left", [1, 2])
async def test_segments_that_cannot_be_trimmed_hide_no_others(left: int):
    """Each pass goes on behind the last one, by number, and then begins with the first again."""
    made = Made()
    made.truncated(TRIMMED_PER_PASS_MAX + left)
    names = [segment.name for segment in made.container.dirty.values()]
    made.container.dirty = dict(reversed(made.container.dirty.items()))
    for segment in made.container.dirty.values():
        segment.tiered.told_start = 2
    for asked, more in ((names[:-left], True), (names[-left:], False), (names[:-left], True)):
        made.directory.asked.clear()
        assert await made.upkeep.trim_truncated() is more
        assert made.directory.asked == asked


async def test_only_the_last_run_waits_for_a_snapshot():
    made = Made()
    made.truncated(1)
    segment = made.container.dirty[10]
    made.directory.runs["10"].append(run_of(3, 3))
    segment.tiered.length, segment.tiered.told_start = 6, 0
    assert await made.upkeep.trim_truncated()
    assert (made.directory.runs["10"], segment.tiered.trimmed_offset) == ([run_of(3, 3)], 3)


async def test_run_with_bytes_behind_the_start_is_not_trimmed():
    made = Made()
    made.truncated(1)
    segment = made.container.dirty[10]
    segment.durable.start_offset = segment.tiered.told_start = 2
    assert not await made.upkeep.trim_truncated()
    assert (made.directory.runs["10"], segment.tiered.trimmed_offset) == ([run_of(0, 3)], 2)


async def test_full_page_of_truncated_runs_may_have_more_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(directory_upkeep, "RUNS_PER_WRITE_MAX", 2)
    made = Made()
    made.truncated(1)
    segment = made.container.dirty[10]
    made.directory.runs["10"] = [run_of(3 * number, 3) for number in range(3)]
    segment.tiered.length = segment.durable.start_offset = segment.tiered.told_start = 9
    while await made.upkeep.trim_truncated():
        pass
    assert (made.directory.runs["10"], segment.tiered.trimmed_offset) == ([], 9)


async def test_pass_that_trimmed_any_segment_may_have_more_to_do():
    made = Made()
    made.truncated(2)
    made.directory.runs["11"] = []
    assert await made.upkeep.trim_truncated()


async def test_segment_without_truncated_runs_is_trimmed_at_once():
    made = Made()
    made.truncated(1)
    made.directory.runs["10"] = [run_of(3, 3)]
    made.container.stored_is_durable = False
    assert not await made.upkeep.trim_truncated()
    assert made.container.dirty[10].tiered.trimmed_offset == 3


async def test_removals_wait_while_a_directory_is_written():
    made = Made()
    done = FlushMark([made.target, made.source])
    waiting = made.target.flushing
    assert waiting is made.source.flushing is not None
    assert not waiting.done()
    done()
    assert waiting.done()
    assert made.target.flushing is made.source.flushing is None


async def test_segment_with_unanswered_writes_is_trimmed_later():
    made = Made()
    made.truncated(1)
    made.unanswered("10")
    assert not await made.upkeep.trim_truncated()
    assert made.directory.asked == []


@pytest.mark.parametrize("reason", ["a start that no snapshot has", "a move that the log does not know"])
async def test_trim_waits_until_the_bytes_are_not_needed(reason: str):
    made = Made()
    made.truncated(1)
    segment = made.container.dirty[10]
    if reason == "a start that no snapshot has":
        segment.tiered.told_start = 2
    else:
        made.container.stored_is_durable = False
    assert not await made.upkeep.trim_truncated()
    assert (made.directory.runs["10"], segment.tiered.trimmed_offset) == ([run_of(0, 3)], 0)
    segment.tiered.told_start, made.container.stored_is_durable = 3, True
    assert await made.upkeep.trim_truncated()
    assert (made.directory.runs["10"], segment.tiered.trimmed_offset) == ([], 3)


async def test_refused_trim_is_of_one_segment_and_others_fail_the_pass():
    made = Made()
    made.truncated(3)
    made.directory.refused = {"10": ItemRefusedError("too large")}
    assert await made.upkeep.trim_truncated()
    assert [segment.quarantined for segment in made.container.dirty.values()] == [True, False, False]
    made = Made()
    made.truncated(3)
    made.directory.refused = {"11": UnavailableError("no answer")}
    with pytest.raises(UnavailableError):
        await made.upkeep.trim_truncated()
    assert not any(segment.quarantined for segment in made.container.dirty.values())


def of_source(made: Made, length: int = 0) -> ContainerSnapshot:
    source = made.source.stored_snapshot()
    return of_segments(replace(source, length=length))


async def test_merge_waits_while_a_snapshot_has_its_source():
    """Also a snapshot that is being written: it may be in force when the bytes of the merge are stored."""
    made = Made()
    (merge,) = made.target.merges
    assert not made.upkeep.merge_must_wait(merge)
    made.upkeep.note_taken(of_source(made))
    assert made.upkeep.merge_must_wait(merge)
    assert made.upkeep.wants_snapshot(made.target)
    assert not made.upkeep.wants_snapshot(made.source)
    made.upkeep.note_taken(of_segments())
    assert made.upkeep.merge_must_wait(merge), "the one before it may be in force"
    made.upkeep.note_snapshot(of_source(made))
    assert made.upkeep.merge_must_wait(merge)
    made.upkeep.note_snapshot(of_segments())
    assert not made.upkeep.merge_must_wait(merge)


async def test_merge_waits_for_any_of_its_sources_only():
    made = nested()
    (merge,) = made.container.dirty[3].merges
    assert [source.name for source in merge.sources()] == [TARGET, SOURCE]
    other = replace(made.source.stored_snapshot(), name=transaction_segment_name(NAME, 2), length=0)
    for snapshot, must_wait in [(of_segments(other), False), (of_source(made), True), (of_segments(), False)]:
        made.upkeep.note_snapshot(snapshot)
        assert made.upkeep.merge_must_wait(merge) is must_wait
    made.source.recorded = RecordedState(1, b"")
    assert made.upkeep.merge_must_wait(merge), "its record tells of it"


async def test_merge_of_a_source_with_stored_bytes_does_not_wait():
    """A restoration that finds them nowhere knows that the source was merged."""
    made = Made()
    (merge,) = made.target.merges
    made.upkeep.note_snapshot(of_source(made, length=1))
    assert not made.upkeep.merge_must_wait(merge)


async def test_merge_waits_for_the_first_snapshot_of_an_owner():
    made = Made(covered=False)
    (merge,) = made.target.merges
    assert made.upkeep.merge_must_wait(merge)
    made.upkeep.note_snapshot(of_segments())
    assert not made.upkeep.merge_must_wait(merge)


async def test_restored_open_transactions_are_in_the_snapshot(world: World):
    async with world.running(graceful=False) as running:
        source = transaction_segment_name(NAME, 1)
        client = await created_segment(running, NAME, b"one")
        await client.create(source)
        await running.store.owned[0].writer.stop()
        container, upkeep = upkeep_of(running)
        await write(client, source, [b"two"])
        merged = await client.call(wire.MergeSegmentsBatch(3, NAME, (source,)))
        assert isinstance(merged, wire.SegmentsBatchMerged)
        (merge,) = container.metadata.segments[NAME].merges
        assert upkeep.merge_must_wait(merge)


OTHER = "scope/stream/1.#epoch.0"


async def test_first_bytes_wait_for_a_snapshot_after_a_takeover():
    """The snapshot of a former owner may have removed segments of any name, but never one of a transaction."""
    made = Made(covered=False)
    assert made.upkeep.must_wait(made.target)
    assert not made.upkeep.must_wait(made.source)
    made.metadata.apply(CreateOperation(9, transient_segment_name(OTHER, 1, 2), (), 0), 0, 1)
    assert not made.upkeep.must_wait(made.metadata.by_number(9))
    made.target.tiered.length = 1
    assert not made.upkeep.must_wait(made.target)
    made.metadata.apply(CreateOperation(3, OTHER, (), 0), 0, 1)
    made.append(made.metadata.by_number(3), 2)
    made.metadata.apply(MergeOperation(1, 3, 7, 2, (), 0), 5, 2)
    assert made.upkeep.must_wait(made.target), "a merge brings the first bytes of another name"
    made.upkeep.note_snapshot(of_segments(told(9, start=2)))
    assert not made.upkeep.must_wait(made.target)
    assert made.target.tiered.told_start == 0, "that of another segment of the name"
    made.upkeep.note_snapshot(of_segments(told(1, start=2)))
    assert made.target.tiered.told_start == 2


def nested() -> Made:
    """The merge is durable and in tier 2 under its source's name, and its target is merged into a third segment."""
    made = Made()
    made.settle()
    made.metadata.apply(CreateOperation(3, OTHER, (), 0), 0, 1)
    outer = made.metadata.by_number(3)
    made.append(outer, 5)
    made.metadata.apply(MergeOperation(3, 1, 5, 7, (), 0), 5, 2)()
    outer.tiered.length, made.target.tiered.length, made.source.tiered.length = 5, 3, 4
    made.container.dirty = {3: outer}
    return made


def script_moves(monkeypatch: pytest.MonkeyPatch, *results: list[ChunkRun] | Exception | None) -> list[str]:
    """Let the moves end like this. Returns the names of their targets, as they come."""
    left, found = list(results), list[str]()

    async def moved(_directory: object, target: str, _merged: MergedRange) -> list[ChunkRun] | None:
        found.append(target)
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(directory_upkeep, "move_merged", moved)
    return found


async def test_merges_are_moved_from_the_inside(monkeypatch: pytest.MonkeyPatch):
    made = nested()
    targets = script_moves(monkeypatch, [run_of(3, 4)], [run_of(5, 3), run_of(8, 4)])
    assert await made.upkeep.move_merged()
    assert made.noted == [(TARGET, 4), (OTHER, 3), (OTHER, 4)]
    assert targets == [TARGET, OTHER]
    assert (made.stored, made.told_stored) == ([(1, 7), (3, 12)], 2)
    assert not await made.upkeep.move_merged()


@pytest.mark.parametrize("first_waits", [False, True])
async def test_merges_of_all_segments_are_moved(monkeypatch: pytest.MonkeyPatch, *, first_waits: bool):
    made = Made()
    made.settle()
    for number, name in ((3, OTHER), (4, transaction_segment_name(OTHER, 1))):
        made.metadata.apply(CreateOperation(number, name, (), 0), 0, 1)
    other, source = made.metadata.by_number(3), made.metadata.by_number(4)
    made.append(other, 5)
    made.append(source, 2)
    made.metadata.apply(MergeOperation(3, 4, 5, 2, (), 0), 5, 2)()
    made.container.dirty[3] = other
    made.target.tiered.length, made.source.tiered.length, other.tiered.length, source.tiered.length = 3, 4, 5, 2
    if first_waits:
        made.removed(used := "scope/stream/2.#epoch.0")
        await made.upkeep.forget_removed(())
        made.metadata.apply(CreateOperation(9, used, (), 0), 0, 1)
        made.append(made.metadata.by_number(9), 2)
        made.metadata.apply(MergeOperation(1, 9, 7, 2, (), 0), 5, 2)()
    targets = script_moves(monkeypatch, *[[run_of(3, 4)], [run_of(5, 2)]][first_waits:])
    assert await made.upkeep.move_merged()
    assert targets == [TARGET, OTHER][first_waits:]


@pytest.mark.parametrize(("runs", "is_found"), [([], False), ([run_of(5, 6)], False), ([run_of(5, 7)], True)])
async def test_move_that_has_gone_on_is_found(monkeypatch: pytest.MonkeyPatch, runs: list[ChunkRun], *, is_found: bool):
    """A crash undoes what the log does not know: both moves had been done."""
    made = nested()
    made.directory.runs[OTHER] = runs
    script_moves(monkeypatch, None, [run_of(5, 7)])
    if is_found:
        assert await made.upkeep.move_merged()
        assert made.stored == [(1, 7), (3, 12)]
    else:
        with pytest.raises(CorruptError, match=f"has lost runs of {SOURCE}, merged into {TARGET}"):
            await made.upkeep.move_merged()


async def test_move_that_tier_2_refuses_is_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    made = nested()
    targets = script_moves(monkeypatch, ItemRefusedError("too large"))
    outer = made.container.dirty[3]
    for _ in range(2):
        await made.upkeep.move_merged()
        assert (outer.quarantined, outer.flushing, targets) == (True, None, [TARGET])


@pytest.mark.parametrize("state", ["removed", "must wait"])
async def test_merge_is_not_moved_where_it_must_not_be(monkeypatch: pytest.MonkeyPatch, state: str):
    made = nested()
    targets = script_moves(monkeypatch)
    if state == "removed":
        made.container.dirty[3].accepted.removed = True
    else:
        made.removed(used := "scope/stream/2.#epoch.0")
        await made.upkeep.forget_removed({SOURCE})
        made.metadata.apply(CreateOperation(9, used, (), 0), 0, 1)
        made.append(made.metadata.by_number(9), 2)
        made.metadata.apply(MergeOperation(3, 9, 12, 2, (), 0), 5, 2)()
    assert not await made.upkeep.move_merged()
    assert targets == []
