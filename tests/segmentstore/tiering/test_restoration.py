"""What tier 2 tells about a container whose log is lost, or was continued after the loss of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from ledger_worlds import claim_container
from list_ledger import ListLedger

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.codec.container_snapshots import (
    ContainerSnapshot,
    DirectoryPlace,
    MergedRange,
    SegmentSnapshot,
    encode_snapshot,
)
from headrace.codec.data_frames import CreateOperation, DeleteOperation, decode_operation
from headrace.model.chunks import ChunkRun, RunLink, packed_name
from headrace.model.errors import CorruptError, HeadraceError
from headrace.model.names import transient_segment_name
from headrace.model.segment_attributes import NO_VALUE, REVISION_MARK
from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Ledger
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.container_rates import ContainerRates
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import FrameReader, OperationLog, OrderingClock
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering import restoration
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.restoration import (
    RECONCILED_AT_ONCE_MAX,
    reconcile_after_loss,
    reconciled_segment,
    restore_container,
)
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore

pytestmark = pytest.mark.anyio

NAME, OTHER, THIRD, FOURTH = (f"scope/stream/{number}.#epoch.0" for number in range(4))
TRANSACTION = f"{NAME}#transaction.{'0' * 31}1"
OBJECT = packed_name(0, 0, 1)
WRITER = 5


class Tier2:
    """The chunk directory of a container that was claimed so many times, and its snapshots."""

    def __init__(self, claims: int = 1) -> None:
        self.metadata = MemoryMetadataStore()
        self.chunks = MemoryChunkStorage()
        for _ in range(claims):
            self.claim()

    def claim(self) -> None:
        self.epoch = claim_container(self.metadata, 0)
        self.directory = ChunkDirectory(self.metadata, 0, self.epoch, ManualClock())
        self.snapshots = SnapshotStore(self.metadata, self.chunks, 0, self.epoch)

    async def add(self, name: str, *starts: int) -> None:
        """Runs of three bytes."""
        await self.directory.add([(name, ChunkRun(start, 3, OBJECT, start)) for start in starts], {OBJECT: 1000})

    async def starts(self, name: str) -> list[int]:
        return [run.offset for run in await self.directory.page(name)]


def known(name: str = NAME, start: int = 0, length: int = 3, **fields: Any) -> SegmentSnapshot:
    """A segment as a snapshot or a log has it."""
    return SegmentSnapshot(fields.pop("number", 1), name, start, length, fields.pop("sealed", False), 0, {}, **fields)


# One segment


@pytest.mark.parametrize(
    ("start", "length", "runs", "found"),
    [
        (0, 0, (), (0, 0)),
        (0, 3, (), None),
        (3, 3, (), (3, 3)),
        (6, 3, (), (6, 6)),
        (0, 3, (0, 3), (0, 6)),
        (0, 3, (3,), (3, 6)),
        (2, 6, (0, 3), (2, 6)),
        (6, 6, (0,), (6, 6)),
    ],
    ids=["empty", "gone", "truncated", "start behind", "longer", "trimmed", "not trimmed", "truncated end"],
)
async def test_segment_is_as_the_directory_has_it(
    start: int, length: int, runs: tuple[int, ...], found: tuple[int, int] | None
):
    tier_2 = Tier2()
    await tier_2.add(NAME, *runs)
    segment = await reconciled_segment(known(NAME, start, length), tier_2.directory)
    assert found == (None if segment is None else (segment.start_offset, segment.length))


@pytest.mark.parametrize(("mark", "kept"), [(0, True), (6, True), (7, False)])
async def test_mark_of_a_revision_that_is_lost_is_forgotten(mark: int, kept: bool):
    """Readers that begin behind the end find no state, or a part of an entry that is written later."""
    tier_2 = Tier2()
    await tier_2.add(NAME, 0, 3)
    marked = replace(known(), attributes={WRITER: 1, REVISION_MARK: mark})
    segment = await reconciled_segment(marked, tier_2.directory)
    assert segment is not None
    assert segment.attributes == ({WRITER: 1, REVISION_MARK: mark} if kept else {WRITER: 1})


async def test_segment_whose_runs_are_missing_is_corrupt():
    tier_2 = Tier2()
    await tier_2.add(NAME, 0)
    with pytest.raises(CorruptError, match="up to 3, its snapshot up to 6"):
        await reconciled_segment(known(NAME, 5, 6), tier_2.directory)


@pytest.mark.parametrize(
    ("name", "fields", "lacks"),
    [
        (NAME, {}, False),
        (NAME, {"may_lack_bytes": True}, True),
        (TRANSACTION, {}, True),
        (TRANSACTION, {"whole_length": 6}, True),
        (TRANSACTION, {"whole_length": 3}, False),
        (TRANSACTION, {"whole_length": 3, "may_lack_bytes": True}, True),
    ],
)
async def test_only_whole_transactions_lack_no_bytes(name: str, fields: dict[str, Any], lacks: bool):
    tier_2 = Tier2()
    await tier_2.add(name, 0)
    segment = await reconciled_segment(known(name, **fields), tier_2.directory)
    assert segment is not None
    assert segment.may_lack_bytes is lacks


def merged(offset: int, source: str, inner: tuple[MergedRange, ...] = (), length: int = 3) -> MergedRange:
    return MergedRange(offset, length, DirectoryPlace(source, 0), 7, inner)


@pytest.mark.parametrize(
    ("ranges", "length", "left"),
    [
        ((merged(3, OTHER), merged(6, THIRD)), 9, []),
        ((merged(3, "gone"), merged(6, THIRD)), 3, [OTHER, THIRD]),
        ((merged(3, OTHER), merged(9, THIRD)), 6, [THIRD]),
        ((merged(3, OTHER, (merged(3, THIRD),), length=6),), 9, []),
        ((merged(3, OTHER, (merged(3, "moved"),)),), 6, [THIRD]),
        ((merged(3, OTHER, (merged(3, THIRD), merged(6, FOURTH)), length=9),), 12, []),
    ],
    ids=["all", "first is gone", "gap", "nested", "inner was moved on", "two inner ones"],
)
async def test_merges_that_tier_2_has_are_completed(ranges: tuple[MergedRange, ...], length: int, left: list[str]):
    tier_2 = Tier2()
    for name in (NAME, OTHER, THIRD, FOURTH):
        await tier_2.add(name, 0)
    segment = await reconciled_segment(known(merged=ranges), tier_2.directory)
    assert segment is not None
    assert (segment.length, segment.merged) == (length, ())
    assert await tier_2.starts(NAME) == list(range(0, length, 3))
    assert [name for name in (OTHER, THIRD) if await tier_2.starts(name)] == left


async def linked() -> Tier2:
    """The second run of a segment is behind a link to another one."""
    tier_2 = Tier2()
    await tier_2.add(NAME, 0)
    await tier_2.add(OTHER, 0)
    await tier_2.directory.link(NAME, RunLink(3, 3, OTHER, 0, 7), (await tier_2.directory.page(OTHER))[0])
    return tier_2


async def test_linked_runs_are_moved_to_their_segment():
    tier_2 = await linked()
    segment = await reconciled_segment(known(), tier_2.directory)
    assert segment is not None
    assert segment.length == 6
    assert await tier_2.starts(NAME) == [0, 3]


@pytest.mark.parametrize("frees_name", [False, True])
async def test_runs_are_moved_before_their_name_is_free(*, frees_name: bool):
    tier_2 = await linked()
    assert await reconciled_segment(known(OTHER), tier_2.directory, frees_name=frees_name) is None
    assert await tier_2.starts(NAME) == ([0, 3] if frees_name else [0])


async def test_lost_runs_of_another_segment_fail_no_restoration():
    tier_2 = await linked()
    await tier_2.directory.remove(OTHER, await tier_2.directory.page(OTHER))
    assert await reconciled_segment(known(OTHER), tier_2.directory) is None


# A container without a log


@pytest.mark.parametrize(
    ("clean", "later_claims", "restored", "exact"),
    [(True, 1, False, True), (False, 1, False, False), (True, 2, False, True), (True, 2, True, False)],
    ids=str,
)
async def test_only_a_clean_snapshot_is_exact(clean: bool, later_claims: int, restored: bool, exact: bool):
    """Owners that lost their claims before they served have changed nothing."""
    tier_2 = Tier2()
    await tier_2.snapshots.replace(list(encode_snapshot(ContainerSnapshot(8, {}, [known(number=4)]))), clean=clean)
    for _ in range(later_claims):
        tier_2.claim()
    left = await tier_2.snapshots.pointer()
    assert left is not None
    snapshot = await restore_container(tier_2.snapshots, tier_2.directory, replace(left, restored=restored))
    names = [segment.name for segment in snapshot.segments]
    assert (names, snapshot.deletions) == (([NAME], {}) if exact else ([], {NAME: 4})), "the directory has nothing"
    doubts = (False, 0) if exact else (True, tier_2.epoch)
    assert (snapshot.has_records, snapshot.doubtful_before, snapshot.next_number) == (*doubts, 8)
    pointer = await tier_2.snapshots.pointer()
    assert pointer is not None
    assert (pointer.epoch, pointer.clean) == (tier_2.epoch, False)
    stored = await tier_2.snapshots.load(pointer)
    assert [segment.name for segment in stored.segments] == names


async def test_container_without_a_snapshot_looks_for_its_segments():
    tier_2 = Tier2(2)
    restored = await restore_container(tier_2.snapshots, tier_2.directory, None)
    assert (list(restored.segments), restored.has_records, restored.doubtful_before) == ([], True, tier_2.epoch)
    assert restored.next_number == 1
    assert await tier_2.snapshots.pointer() is not None


async def test_every_segment_of_many_is_reconciled():
    tier_2 = Tier2()
    count = RECONCILED_AT_ONCE_MAX + 1
    segments = [known(f"scope/stream/{number}.#epoch.0", length=0, number=number) for number in range(1, count + 1)]
    gone = segments[1] = replace(segments[1], length=3)
    await tier_2.snapshots.replace(list(encode_snapshot(ContainerSnapshot(99, {}, segments))), clean=False)
    await tier_2.add(segments[-1].name, 0)
    tier_2.claim()
    restored = await restore_container(tier_2.snapshots, tier_2.directory, await tier_2.snapshots.pointer())
    assert [segment.length for segment in restored.segments] == [0] * (RECONCILED_AT_ONCE_MAX - 1) + [3]
    assert restored.deletions == {gone.name: gone.number}


# A container whose log was continued after a loss


class DurableLedger(ListLedger):
    """Entries are durable in the next turn, while it is not `held`."""

    is_held = False

    def append(
        self, parts: Any, done: Callable[[Exception | None], None], released: Callable[[], None] | None = None
    ) -> int:
        entry = super().append(parts, done, released)
        if not self.is_held:
            asyncio.get_running_loop().call_soon(self.acknowledge)
        return entry


class Continued(Tier2):
    """A container as what is left of its log has it."""

    def __init__(self) -> None:
        super().__init__()
        clock = ManualClock()
        self.pool, rates = BlockPool(1 << 20, 64 << 10), ContainerRates(clock, None)
        self.ledger = DurableLedger(1 << 16)
        self.known = ContainerMetadata(0, self.pool, rates.watch)

        def open_log(failed: Callable[[HeadraceError], None]) -> OperationLog:
            return OperationLog(cast("Ledger", self.ledger), OrderingClock(clock), on_failure=failed)

        async def find_record(_name: str) -> None:
            raise AssertionError("no segment is looked for")

        self.container = SegmentContainer(
            0,
            self.epoch,
            self.known,
            open_log,
            self.pool,
            clock,
            lambda _container, _error: None,
            LogRoom(lambda: LogSpace(0, 0, 1 << 20, 1 << 10), list),
            rates,
            find_record,
        )

    def segment(self, name: str = NAME, *, length: int = 6, tiered: int = 3) -> Segment:
        """With bytes of which tier 2 has `tiered`, as the log tells, and a writer's event number."""
        number = self.known.next_number
        self.known.apply(CreateOperation(number, name, (), 0), 0, 1)
        segment = self.known.by_number(number)
        for offset in range(0, length, 3):
            reserved = self.pool.reserve(3)
            assert reserved is not None
            segment.index.add(offset, reserved, 0, (WRITER, NO_VALUE, 1))
            self.known.append(segment, offset + 3, WRITER, offset, 1, 0)
        segment.durable.length = length
        segment.advance_tiered(tiered)
        self.container.dirty[number] = segment
        return segment

    def removed(self, name: str) -> int:
        """Create and remove a segment; its number."""
        number = self.segment(name, length=0, tiered=0).number
        del self.container.dirty[number]
        self.known.apply(DeleteOperation(number, 0), 0, 1)()
        return number

    async def reconcile(self, newer: ContainerSnapshot | None = None) -> None:
        """Check, too, that the next owner comes to the same state by the logged operations."""
        next_owner = ContainerMetadata(0, BlockPool(1 << 20, 64 << 10), lambda _segment: None)
        next_owner.restore(ContainerSnapshot(**as_fields(self.known.snapshot())))
        for segment in self.known.segments.values():
            next_owner.segments[segment.name].tiered.length = segment.tiered.length
        await reconcile_after_loss(self.container, self.directory, newer)
        reader = FrameReader(0)
        for entry, payload in enumerate(self.ledger.entries):
            for logged in reader.read(entry, memoryview(payload)):
                next_owner.apply(decode_operation(memoryview(logged.content)), logged.entry, logged.ordering)()
        of_both = [as_fields(metadata.snapshot()) for metadata in (self.known, next_owner)]
        # Both count numbers from the greatest one that they have seen. The snapshot's is not logged.
        of_both[1]["next_number"] = max(of_both[0]["next_number"], of_both[1]["next_number"])
        assert of_both[0] == of_both[1]

    def now(self, name: str = NAME) -> tuple[int, int, int, int]:
        """Number, start, length, and how much tier 2 has."""
        segment = self.known.segments[name]
        assert segment.durable.length == segment.accepted.length
        accepted = segment.accepted
        return segment.number, accepted.start_offset, accepted.length, segment.tiered.length


def as_fields(snapshot: ContainerSnapshot) -> dict[str, Any]:
    return {
        "next_number": snapshot.next_number,
        "deletions": snapshot.deletions,
        "segments": [replace(each, attributes=dict(each.attributes)) for each in snapshot.segments],
        "has_records": snapshot.has_records,
        "doubtful_before": snapshot.doubtful_before,
    }


def newer(*segments: SegmentSnapshot, next_number: int = 20, **deletions: int) -> ContainerSnapshot:
    return ContainerSnapshot(next_number, deletions, segments)


@pytest.mark.parametrize(
    ("runs", "now", "is_dirty", "untiered", "changes"),
    [
        ((0,), (1, 0, 6, 3), True, 3, 0),
        ((0, 3), (1, 0, 6, 6), True, 0, 1),
        ((0, 3, 6), (2, 0, 9, 9), False, 0, 2),
        ((3, 6), (2, 3, 9, 9), True, 0, 3),
        ((3,), (1, 3, 6, 6), True, 0, 2),
    ],
    ids=["as the log", "more stored", "longer", "longer and trimmed", "trimmed"],
)
async def test_segment_continues_behind_what_tier_2_has(
    runs: tuple[int, ...],
    now: tuple[int, ...],
    is_dirty: bool,
    untiered: int,
    changes: int,
    caplog: pytest.LogCaptureFixture,
):
    container = Continued()
    container.segment()
    await container.add(NAME, *runs)
    await container.reconcile()
    assert container.now() == now
    assert set(container.container.dirty) == ({now[0]} if is_dirty else set()), "those with a start are trimmed"
    assert container.known.segments[NAME].tiered.trimmed_offset == 0, "there may be runs before the start"
    assert container.pool.untiered_bytes == untiered
    assert container.known.has_records
    assert f" changes={changes}" in caplog.text


async def test_tiered_segment_is_trimmed_after_a_loss():
    container = Continued()
    container.container.dirty.pop(container.segment(tiered=6).number)
    await container.add(NAME, 3)
    await container.reconcile()
    assert container.now() == (1, 3, 6, 6)
    assert set(container.container.dirty) == {1}


async def test_segment_that_tier_2_has_removed_stays_removed():
    container = Continued()
    container.segment()
    await container.reconcile()
    assert set(container.known.deletions) == {NAME}
    assert container.known.deletions[NAME] <= container.container.log.durable_entry, "it is finished at once"
    assert not container.container.dirty


@pytest.mark.parametrize(
    ("runs", "now"),
    [
        ([ChunkRun(0, 6, OBJECT, 0), ChunkRun(6, 1, OBJECT, 6)], (2, 0, 7, 7)),
        ([ChunkRun(1, 2, OBJECT, 1)], (1, 1, 6, 3)),
    ],
    ids=["longer", "trimmed"],
)
async def test_single_byte_that_tier_2_is_ahead_counts(runs: list[ChunkRun], now: tuple[int, ...]):
    container = Continued()
    container.segment()
    await container.directory.add([(NAME, run) for run in runs], {OBJECT: 1000})
    await container.reconcile()
    assert container.now() == now


async def test_all_segments_of_a_container_are_reconciled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(restoration, "RECONCILED_AT_ONCE_MAX", 2)
    container = Continued()
    names = [f"scope/stream/{number}.#epoch.0" for number in range(10, 20)]
    for number, name in enumerate(names, 1):
        await container.add(name, 0, 3)
        if number <= 5:
            container.segment(name)
    told = [known(name, length=6, number=number) for number, name in enumerate(names, 1)]
    await container.reconcile(newer(*told, gone=11, ended=12, removed=13))
    assert list(container.known.segments) == names
    assert [container.now(name)[1:] for name in names] == [(0, 6, 6)] * len(names)
    assert set(container.known.deletions) == {"gone", "ended", "removed"}


async def test_segment_without_bytes_in_tier_2_stays():
    container = Continued()
    container.segment(tiered=0)
    await container.reconcile()
    assert container.now() == (1, 0, 6, 0)


@pytest.mark.parametrize("runs", [(0, 3), (0, 3, 6)])
@pytest.mark.parametrize(("in_log", "in_snapshot"), [(True, False), (False, True), (False, False), (True, None)])
async def test_seal_in_the_log_or_in_the_snapshot_stays(runs: tuple[int, ...], in_log: bool, in_snapshot: bool | None):
    container = Continued()
    segment = container.segment(tiered=6)
    segment.accepted.sealed = segment.durable.sealed = in_log
    await container.add(NAME, *runs)
    told = None if in_snapshot is None else newer(known(length=6, sealed=in_snapshot))
    await container.reconcile(told)
    now = container.known.segments[NAME]
    assert now.accepted.sealed is now.durable.sealed is (in_log or bool(in_snapshot))


@pytest.mark.parametrize(
    ("told_length", "event_number"), [(3, 3), (6, 70), (9, 70)], ids=["before the end", "at the end", "behind the end"]
)
async def test_lost_appends_have_the_event_numbers_of_the_snapshot(told_length: int, event_number: int):
    container = Continued()
    container.segment().accepted.may_lack_bytes = True
    await container.add(NAME, 0, 3, 6)
    await container.reconcile(newer(replace(known(length=told_length), attributes={WRITER: 70})))
    assert container.now() == (20, 0, 9, 9), "a number that the lost part did not use"
    segment = container.known.segments[NAME]
    assert segment.accepted.attributes[WRITER] == event_number
    assert segment.accepted.may_lack_bytes


async def test_directory_must_have_what_the_snapshot_tells():
    container = Continued()
    container.segment()
    await container.add(NAME, 0)
    with pytest.raises(CorruptError, match="runs are missing"):
        await container.reconcile(newer(known(length=6)))


async def test_start_and_merges_of_the_snapshot_are_taken_over():
    container = Continued()
    container.segment(tiered=0)
    container.segment(OTHER)
    await container.add(OTHER, 0)
    await container.add(THIRD, 0)
    told = newer(known(start=3), known(OTHER, length=3, number=2, merged=(merged(3, THIRD),)))
    await container.reconcile(told)
    assert container.now() == (1, 3, 6, 3), "it is not gone: all that tier 2 had is truncated"
    assert container.now(OTHER) == (2, 0, 6, 6)
    assert await container.starts(OTHER) == [0, 3]


async def test_segments_that_the_snapshot_lacks_are_not_here():
    """They were evicted, removed or replaced in the lost part."""
    container = Continued()
    transient = transient_segment_name(NAME, 1, 2)
    for name in (NAME, OTHER, THIRD, transient):
        container.segment(name)
        if name != transient:
            await container.add(name, 0, 3)
    told = newer(known(THIRD, length=6, number=9), **{OTHER: 2})
    await container.reconcile(told)
    assert set(container.known.segments) == {THIRD}
    assert container.now(THIRD) == (20, 0, 6, 6), "the next one of its name"
    assert dict(container.known.deleted_numbers) == {OTHER: 2}, "the transient one was removed from tier 2, too"
    assert container.known.may_be_evicted(NAME)
    assert not container.container.dirty


async def test_segments_of_the_snapshot_are_brought_back():
    container = Continued()
    deleted = container.removed(THIRD)
    await container.add(NAME, 3, 6)
    await container.add(THIRD, 0)
    told = newer(known(start=3, length=6, number=7), known(OTHER, number=8), known(THIRD, number=deleted))
    await container.reconcile(told)
    assert set(container.known.segments) == {NAME}, "one has gone since, and one was removed by the log"
    assert container.now() == (20, 3, 9, 9)
    assert set(container.container.dirty) == {20}
    assert dict(container.known.deleted_numbers) == {THIRD: deleted}


async def test_removals_end_as_the_snapshot_tells():
    container = Continued()
    done, renewed, ending = (container.removed(name) for name in (NAME, OTHER, THIRD))
    await container.add("later", 0)
    told = newer(known(OTHER, number=9), later=12, **{THIRD: ending})
    await container.reconcile(told)
    assert done not in container.known.deleted_numbers.values()
    assert renewed not in container.known.deleted_numbers.values()
    assert container.known.deleted_numbers[THIRD] == ending
    assert set(container.known.deletions) == {THIRD, "later"}
    assert container.known.deleted_numbers["later"] >= 20


async def test_no_client_is_served_before_the_changes_are_durable():
    container = Continued()
    container.segment()
    await container.add(NAME, 0)
    container.ledger.is_held = True
    work = asyncio.ensure_future(container.reconcile())
    while not container.ledger.entries:
        await asyncio.sleep(0.001)
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not work.done()
    container.ledger.acknowledge(len(container.ledger.entries))
    container.ledger.is_held = False
    while not work.done():
        await asyncio.sleep(0.001)
        container.ledger.acknowledge(len(container.ledger.entries) - container.ledger.acknowledged)
    work.result()
