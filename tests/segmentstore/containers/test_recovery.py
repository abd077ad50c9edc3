"""A recovery loads what tier 2 lacks and nothing else, in bounded memory, and says what it did."""

from __future__ import annotations

import asyncio
import logging
import re
import tracemalloc
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c
from list_ledger import framed
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec import data_frames
from headrace.codec.container_snapshots import PART_BYTES, ContainerSnapshot, SegmentSnapshot, encode_snapshot
from headrace.codec.data_frames import CreateOperation
from headrace.codec.log_record_header import RecordKind
from headrace.model.container_logs import LedgerStart
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.ports.ledger import Ledger, LedgerEntry
from headrace.segmentstore.cache import read_index
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.read_index import ReadIndex
from headrace.segmentstore.containers import recovery as recovery_module
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock
from headrace.segmentstore.containers.recovery import CHECKPOINTS_KEPT_MAX, Checkpoints, Recovery
from headrace.segmentstore.log.journal import journal_scan
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, FileHeader, Format2, RecordHeader
from headrace.segmentstore.log.journal.journal_scan import RecordScan
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

pytestmark = pytest.mark.anyio

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
TRANSACTION = SEGMENTS[0] + "#transaction." + "0" * 31 + "1"
WRITER = 5


async def stop_storing(running):
    for owned in running.store.owned.values():
        await owned.writer.stop()


async def write(client, segment, number, data):
    await client.set_up(segment, WRITER)
    await client.append(WRITER, number, data)


@pytest.fixture
def recovered_lines(caplog):
    caplog.set_level(logging.INFO, logger="headrace.segmentstore.owned_container")

    def lines():
        fields = [re.findall(r"(\w+)=(\S+)", record.getMessage()) for record in caplog.records]
        return [dict(line) for line in fields if line and line[0] == ("event", "recovered")]

    return lines


async def test_only_what_tier_2_lacks_is_loaded(world: World):
    world.container_count = 1
    random = Random(1)
    stored, lacking = [random.randbytes(100_000) for _ in range(6)], [random.randbytes(70_000) for _ in range(3)]

    async with world.running(graceful=False) as running:
        client = await running.connect()
        for segment, data in zip(SEGMENTS, stored, strict=False):
            await client.create(segment)
            await write(client, segment, 1, data)
        await client.create(TRANSACTION)
        await write(client, TRANSACTION, 1, stored[3])
        await running.flush()
        await stop_storing(running)
        await client.call(wire.MergeSegments(3, SEGMENTS[0], TRANSACTION))
        for segment, data in zip(SEGMENTS, lacking, strict=True):
            await write(client, segment, 2, data)
        await client.call(wire.DeleteSegment(4, SEGMENTS[2]))
    world.disk = world.disk.cut_power(1)
    async with world.running() as running:
        client = await running.connect()
        assert running.store.pool.untiered_bytes == 140_000
        await running.store.owned[0].backfill.wait()
        assert running.store.owned[0].backfill.loaded_bytes == 140_000
        assert running.store.pool.untiered_bytes == 140_000
        assert await client.read_all(SEGMENTS[0]) == stored[0] + stored[3] + lacking[0]
        assert await client.read_all(SEGMENTS[1]) == stored[1] + lacking[1]
        assert await client.set_up(SEGMENTS[1], WRITER) == 2


async def test_the_pool_s_bound_does_not_cost_acknowledged_bytes(world: World):
    """The next start may have a smaller cache."""
    data = Random(2).randbytes(3 << 20)

    async with world.running(graceful=False) as running:
        client = await running.connect()
        await stop_storing(running)
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], 1, data)
        await write(client, SEGMENTS[0], 2, b"end")
    world.cache_bytes = 1 << 20
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(SEGMENTS[0]) == data + b"end"
        assert sum(owned.backfill.loaded_bytes for owned in running.store.owned.values()) == len(data) + 3
        await running.flush()
        assert await client.read_all(SEGMENTS[0]) == data + b"end"


async def test_a_recovery_reports_itself(world: World, recovered_lines):
    world.container_count = 1

    async with world.running(graceful=False) as running:
        client = await running.connect()
        await stop_storing(running)
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], 1, bytes(1000))
    async with world.running():
        first, second = recovered_lines()
        assert (first["log_bytes"], first["operations"]) == ("0", "0")
        assert second["container"] == "0"
        assert float(second["seconds"]) >= 0
        assert int(second["log_bytes"]) > 1000
        assert int(second["operations"]) >= 2


LONG_LOG = 12 * recovery_module.OPERATIONS_PER_SLICE


def start_journal(world: World):
    loop = asyncio.get_running_loop()
    journal = Journal(world.disk, lambda: world.random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=4 << 20)
    journal.start()
    return journal, OneCopyLedgers(journal)


async def log_of_many_operations(world: World):
    """A log of small appends, most of them many in one entry."""
    journal, ledgers = start_journal(world)
    log = OperationLog(ledgers.open(0, 0), OrderingClock(world.clock))
    log.append(data_frames.encode_operation(CreateOperation(1, SEGMENTS[0], (), 0)), lambda _error: None)
    for number in range(LONG_LOG - 1):
        log.append([data_frames.append_fields(1, 3 * number, WRITER, number, 1, 0), b"abc"], lambda _error: None)
        if number % 3000 == 0:
            await log.durable()
    log.close()
    await asyncio.to_thread(journal.close)


async def test_a_long_replay_lets_the_loop_turn(world: World):
    """Heartbeats and the other containers must not wait until a whole log was read."""

    await log_of_many_operations(world)
    journal, ledgers = start_journal(world)
    ledger, recovery = ledgers.open(0, 1), Recovery(0, BlockPool(64 << 20), world.clock)
    seen = [0]

    async def beat():
        while True:
            seen.append(recovery.operations)
            await asyncio.sleep(0)

    beating = asyncio.ensure_future(beat())
    await recovery.run(ledger)
    beating.cancel()
    seen.append(recovery.operations)
    assert recovery.metadata.segments[SEGMENTS[0]].accepted.length == 3 * (LONG_LOG - 1)
    assert seen[-1] == LONG_LOG
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) <= recovery_module.OPERATIONS_PER_SLICE
    await asyncio.to_thread(journal.close)


async def test_promising_a_long_log_lets_the_loop_turn(world: World):
    await log_of_many_operations(world)
    journal, ledgers = start_journal(world)
    ledger, pool = ledgers.open(0, 1), BlockPool(64 << 20)
    recovery = Recovery(0, pool, world.clock)
    await recovery._replay_all(ledger)
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    load = await Backfill.of_replayed(recovery.metadata, pool, ledger)
    counting.cancel()
    assert turns >= LONG_LOG // read_index.ENTRIES_PER_LIST_MAX
    await load.load()
    assert load.loaded_bytes == 3 * (LONG_LOG - 1)
    await asyncio.to_thread(journal.close)


async def test_a_recovery_that_is_cancelled_gives_its_room_back(world: World, monkeypatch: pytest.MonkeyPatch):
    await log_of_many_operations(world)
    journal, ledgers = start_journal(world)
    ledger, pool = ledgers.open(0, 1), BlockPool(64 << 20)
    promised, drop_tiered = [], ReadIndex.drop_tiered

    def cancelling(index):
        for kept in drop_tiered(index):
            promised.extend(kept)
            recovering.cancel()
            yield kept

    monkeypatch.setattr(ReadIndex, "drop_tiered", cancelling)
    recovering = asyncio.ensure_future(Recovery(0, pool, world.clock).run(ledger))
    with pytest.raises(asyncio.CancelledError):
        await recovering
    assert 0 < len(promised) < LONG_LOG - 1
    assert pool.untiered_bytes == 0
    await asyncio.to_thread(journal.close)


async def test_a_replay_that_fails_gives_its_room_back(world: World):
    await log_of_many_operations(world)
    journal, ledgers = start_journal(world)
    ledger, pool = ledgers.open(0, 1), BlockPool(64 << 20)
    world.disk.damage("journal-0000000000000001", 1 << 19)
    with pytest.raises(CorruptError, match="damaged"):
        await Recovery(0, pool, world.clock).run(ledger)
    assert pool.untiered_bytes == 0
    await asyncio.to_thread(journal.close)


def scripted_ledger(*operations: data_frames.Operation, continued_at: LedgerStart | None = None) -> Ledger:
    """A log with one operation in each entry. The ordering of the entry n is n + 1."""
    payloads = [b"".join(framed(operation, sequence)) for sequence, operation in enumerate(operations)]
    entries = [LedgerEntry(entry, memoryview(payload)) for entry, payload in enumerate(payloads)]
    return cast("Ledger", SimpleNamespace(recover=lambda first=0: iter(entries[first:]), continued_at=continued_at))


async def replayed(*operations: data_frames.Operation, continued_at: LedgerStart | None = None) -> Recovery:
    clock = ManualClock()
    clock.advance(5000)
    recovery = Recovery(0, BlockPool(1 << 20, 64 << 10), clock)
    await recovery.run(scripted_ledger(*operations, continued_at=continued_at))
    return recovery


def appended(offset: int, data: bytes, event_number: int = 1) -> data_frames.AppendOperation:
    return data_frames.AppendOperation(1, offset, WRITER, event_number, 1, 0, data)


LATER_TRANSACTION = TRANSACTION[:-1] + "2"
NAMES = (SEGMENTS[0], TRANSACTION, LATER_TRANSACTION)
ACROSS_A_LOSS = tuple(CreateOperation(number, name, (), 0) for number, name in enumerate(NAMES, 1))


@pytest.mark.parametrize(
    ("first", "may_lack", "ordering"),
    [(0, set(), 0), (1, set(), 1), (2, {TRANSACTION}, 2), (3, {TRANSACTION, LATER_TRANSACTION}, 3)],
)
async def test_replay_passes_a_loss_where_the_log_goes_on(first: int, may_lack: set[str], ordering: int):
    recovery = await replayed(*ACROSS_A_LOSS, continued_at=LedgerStart(7, first))
    metadata = recovery.metadata
    assert {name for name, each in metadata.segments.items() if each.accepted.may_lack_bytes} == may_lack
    assert (metadata.has_records, metadata.doubtful_before, recovery.ordering_at_loss) == (True, 7, ordering)


async def test_loss_of_a_whole_log_is_passed():
    recovery = await replayed(continued_at=LedgerStart(7, 3))
    assert (recovery.metadata.has_records, recovery.metadata.doubtful_before) == (True, 7)
    assert (recovery.ordering_at_loss, recovery.told_nothing) == (0, True)


async def test_log_without_a_loss_passes_none():
    recovery = await replayed(*ACROSS_A_LOSS)
    assert (recovery.metadata.has_records, recovery.metadata.doubtful_before) == (False, 0)
    assert not any(each.accepted.may_lack_bytes for each in recovery.metadata.segments.values())
    assert (recovery.ordering_at_loss, recovery.told_nothing, recovery.operations) == (0, False, 3)


def checkpoint_parts(length: int) -> list[data_frames.CheckpointOperation]:
    """A checkpoint of several parts, with one segment of this length. Another one starts behind its begin."""
    padding = [SegmentSnapshot(n, f"{n}" + "s" * PART_BYTES, 0, 0, False, 0, {}) for n in (2, 3)]
    segments = SegmentSnapshot(1, SEGMENTS[0], 0, length, False, 0, {}), SegmentSnapshot(4, "cut", 3, 9, False, 0, {})
    parts = list(encode_snapshot(ContainerSnapshot(5, {}, [*padding, *segments])))
    assert len(parts) > 2
    last = len(parts) - 1
    return [data_frames.CheckpointOperation(part, part == last, memoryview(raw)) for part, raw in enumerate(parts)]


async def test_replay_starts_with_the_first_whole_checkpoint():
    """An interrupted restoration has left the begin of one, and later ones repeat what the replay knows."""
    recovery = await replayed(
        *checkpoint_parts(100)[:2], *checkpoint_parts(20), appended(20, b"abc"), *checkpoint_parts(999)
    )
    metadata = recovery.metadata
    assert (recovery.told_nothing, recovery.has_cut_checkpoint, metadata.next_number) == (False, False, 5)
    assert metadata.segments[SEGMENTS[0]].accepted.length == 23
    assert set(recovery.dirty) == {1, 4}, "one has bytes to flush, the other a start to trim"
    assert {each.untiered_since_s for each in recovery.dirty.values()} == {5.0}


async def test_checkpoint_behind_operations_is_skipped():
    recovery = await replayed(CreateOperation(1, SEGMENTS[0], (), 0), *checkpoint_parts(20), appended(0, b"abc"))
    assert set(recovery.metadata.segments) == {SEGMENTS[0]}
    assert recovery.metadata.segments[SEGMENTS[0]].accepted.length == 3


async def test_log_of_a_cut_checkpoint_told_nothing():
    recovery = await replayed(*checkpoint_parts(20)[:-1])
    assert (recovery.told_nothing, recovery.has_cut_checkpoint) == (True, True)
    assert not recovery.metadata.segments


@pytest.mark.parametrize(
    ("operations", "complaint"),
    [
        ((*checkpoint_parts(20)[:-1], appended(20, b"abc")), "is incomplete"),
        ((checkpoint_parts(20)[0], *checkpoint_parts(20)[2:]), "lacks part 1"),
        (checkpoint_parts(20)[1:], "lacks part 0"),
        ((*checkpoint_parts(20), appended(21, b"abc")), "its length is 20"),
        ((*checkpoint_parts(20), appended(19, b"abc")), "its length is 20"),
    ],
)
async def test_log_that_contradicts_itself_is_corrupt(operations: tuple[data_frames.Operation, ...], complaint: str):
    with pytest.raises(CorruptError, match=complaint):
        await replayed(*operations)


async def test_replayed_append_has_its_place_time_and_number():
    recovery = await replayed(CreateOperation(1, SEGMENTS[0], (), 0), appended(0, b"", 4), appended(0, b"abc", 5))
    segment = recovery.metadata.segments[SEGMENTS[0]]
    assert (segment.attribute(WRITER), segment.untiered_bytes, segment.times.newest) == (5, 3, 3)
    assert segment.oldest_untiered_entry() == 2, "an append without bytes has no place"


async def test_replayed_append_counts_its_events_and_sets_the_time():
    append = data_frames.AppendOperation(1, 0, WRITER, 7, 3, 90, b"abc")
    recovery = await replayed(CreateOperation(1, SEGMENTS[0], (), 20), append)
    segment = recovery.metadata.segments[SEGMENTS[0]]
    assert (segment.attribute(WRITER), segment.attribute(EVENT_COUNT)) == (7, 3)
    assert segment.accepted.last_modified_ms == 90


async def test_replayed_operations_keep_their_entry_and_time():
    """The log is truncated by the entries, and readers who seek by time find a merge by the ordering."""
    operations = (
        *ACROSS_A_LOSS,
        data_frames.AppendOperation(2, 0, WRITER, 1, 1, 0, b"abc"),
        data_frames.MergeOperation(1, 2, 0, 3, (), 0),
        data_frames.DeleteOperation(3, 0),
    )
    metadata = (await replayed(*operations)).metadata
    segment = metadata.segments[SEGMENTS[0]]
    assert metadata.deletions == {TRANSACTION: 4, LATER_TRANSACTION: 5}
    (merge,) = segment.merges
    assert (merge.ledger_entry, merge.ordering, segment.times.newest) == (4, 5, 5)


async def test_replayed_append_without_bytes_keeps_no_memory():
    empty = [appended(0, b"", number) for number in range(1, 2001)]
    recovery = await replayed(CreateOperation(1, SEGMENTS[0], (), 0), *empty)
    segment = recovery.metadata.segments[SEGMENTS[0]]
    assert segment.attribute(WRITER) == 2000
    assert not list(segment.index.entries_behind(0))
    assert segment.oldest_untiered_entry() is None
    assert segment.times.newest == 0


async def test_log_of_a_whole_checkpoint_told_something():
    """Tier 2's snapshot may be older, so that the container must not be restored from it."""
    recovery = await replayed(*checkpoint_parts(20))
    assert (recovery.told_nothing, recovery.has_cut_checkpoint) == (False, False)
    assert recovery.metadata.segments[SEGMENTS[0]].accepted.length == 20


def test_snapshot_of_tier_2_tells_the_starts_of_segments():
    recovery = Recovery(0, BlockPool(1 << 20, 64 << 10), ManualClock())
    whole, cut = (SegmentSnapshot(n, name, start, 9, False, 0, {}) for n, name, start in ((1, "w", 0), (2, "t", 3)))
    recovery.restore(ContainerSnapshot(3, {}, [whole, cut]))
    assert set(recovery.dirty) == {2}
    assert recovery.metadata.segments["t"].tiered.told_start == 3


def test_slice_ends_with_its_bytes_or_operations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recovery_module, "OPERATIONS_PER_SLICE", 4)
    monkeypatch.setattr(recovery_module, "SLICE_BYTES", 10)
    found: Any = iter([SimpleNamespace(logged=SimpleNamespace(content=bytes(n))) for n in (5, 4, 1, 20, 1, 1, 1, 1, 9)])
    assert [len(recovery_module._next_slice(found)) for _ in range(5)] == [3, 1, 4, 1, 0]


def log_file(records, size_bytes):
    """A file of records that say where their commit began, and the records' ends."""
    disk = MemoryJournalDisk()
    disk.create("x", size_bytes)
    file = disk.open("x")
    position, ends = FILE_HEADER_BYTES, []
    for entry, (payload, commit_start) in enumerate(records):
        start = ends[commit_start] if ends else position
        checksum = crc32c(payload)
        header = RecordHeader(RecordKind.ENTRY, 0, 1, 1, entry, 0, 0, start, len(payload), checksum)
        parts = [Format2(FILE.salt).encode(*header), payload]
        file.write(position, parts)
        position += sum(map(len, parts))
        ends.append(position)
    return disk, file, ends


FILE = FileHeader(1, 77, 0)


@pytest.mark.parametrize("window_bytes", [64, 1000, 1 << 20])
def test_records_are_found_whatever_the_window(monkeypatch, window_bytes):
    monkeypatch.setattr(journal_scan, "WINDOW_BYTES", window_bytes)
    random = Random(window_bytes)
    payloads = [random.randbytes(random.randint(0, 700)) for _ in range(50)]
    _, file, ends = log_file([(payload, -1) for payload in payloads], 64 << 10)
    for end in (None, ends[-1]):
        scan = RecordScan(file, Format2(FILE.salt), end, "x")
        window = journal_scan.FileWindow(file)
        found = [bytes(window.view(record.position, record.header.length)) for record in scan]
        assert found == payloads
        assert scan.end == ends[-1]
        assert scan.commit_start == ends[-2]


def test_scanning_takes_no_more_memory_for_a_larger_file(monkeypatch):
    monkeypatch.setattr(journal_scan, "WINDOW_BYTES", 64 << 10)
    _, file, ends = log_file([(bytes(10_000), -1)] * 800, 9 << 20)
    tracemalloc.start()
    try:
        assert sum(1 for _ in RecordScan(file, Format2(FILE.salt), None, "x")) == 800
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert ends[-1] > 7 << 20


EVERY_BYTES = 1000


class ScriptedLog:
    """Each part of a checkpoint is durable at once, in the entry that `next_entry` names, unless the log `holds` it."""

    def __init__(self) -> None:
        self.ledger = SimpleNamespace(held_bytes=0, wants_truncation=False)
        self.next_entry = 0
        self.truncated: list[int] = []
        self.holds = False
        self.held: list[Any] = []
        self.freed_bytes = 0

    def flush(self) -> int:
        return self.next_entry

    def append(self, _operation: object, reached: Any) -> None:
        if self.holds:
            self.held.append(reached)
        else:
            reached(None)

    def truncate(self, before_entry: int) -> None:
        self.truncated.append(before_entry)
        self.ledger.held_bytes -= self.freed_bytes


def new_checkpoints(
    *, oldest_untiered: int | None = None, share_bytes: int = 1 << 40, parts: int = 1
) -> tuple[Checkpoints, ScriptedLog]:
    """Checkpoints of a container whose oldest entry that tier 2 lacks, and whose share of the log, are given."""
    log = ScriptedLog()
    entries = (None, oldest_untiered, None if oldest_untiered is None else oldest_untiered + 100)
    dirty = {n: SimpleNamespace(oldest_untiered_entry=lambda entry=entry: entry) for n, entry in enumerate(entries)}
    large = [SegmentSnapshot(n, "s" * PART_BYTES, 0, 0, False, 0, {}) for n in range(parts)]
    snapshot = ContainerSnapshot(0, {}, large if parts > 1 else ())
    container: Any = SimpleNamespace(
        log=log,
        dirty=dirty,
        metadata=SimpleNamespace(snapshot=lambda: snapshot),
        log_room=SimpleNamespace(container_bytes_max=share_bytes),
    )
    return Checkpoints(container, EVERY_BYTES), log


def checkpoints_at(*entries: int, oldest_untiered: int | None) -> tuple[Checkpoints, ScriptedLog]:
    """Checkpoints in these entries."""
    checkpoints, log = new_checkpoints(oldest_untiered=oldest_untiered)
    for log.next_entry in entries:
        checkpoints.write()
    return checkpoints, log


@pytest.mark.parametrize(
    ("oldest_untiered", "truncated"),
    [(2, []), (3, [3]), (4, [3]), (5, [5]), (8, [5]), (None, [9])],
)
def test_log_keeps_the_oldest_entry_that_tier_2_lacks(oldest_untiered: int | None, truncated: list[int]):
    checkpoints, log = checkpoints_at(3, 5, 9, oldest_untiered=oldest_untiered)
    assert checkpoints.truncate_log() is bool(truncated)
    assert log.truncated == truncated
    assert checkpoints.truncate_log() is False, "the same checkpoint is no reason to truncate again"


def test_log_starts_only_with_a_whole_durable_checkpoint():
    checkpoints, log = new_checkpoints(oldest_untiered=9, parts=3)
    log.holds, log.next_entry = True, 4
    checkpoints.write()
    assert len(log.held) == 3
    for reached in log.held[:-1]:
        reached(None)
        assert not checkpoints.truncate_log()
    log.held[-1](None)
    assert checkpoints.truncate_log()
    assert log.truncated == [4]


def test_log_never_starts_with_a_failed_checkpoint():
    checkpoints, log = new_checkpoints()
    log.holds = True
    checkpoints.write()
    log.held[0](UnavailableError("the log failed"))
    assert not checkpoints.truncate_log()
    assert log.truncated == []


@pytest.mark.parametrize(
    ("oldest_untiered", "truncated"),
    [
        (0, [0]),
        (CHECKPOINTS_KEPT_MAX + 1, [0]),
        (CHECKPOINTS_KEPT_MAX + 2, [CHECKPOINTS_KEPT_MAX + 2]),
        (None, [2 * CHECKPOINTS_KEPT_MAX]),
    ],
)
def test_first_and_newest_of_many_checkpoints_stay_usable(oldest_untiered: int | None, truncated: list[int]):
    checkpoints, log = checkpoints_at(*range(2 * CHECKPOINTS_KEPT_MAX + 1), oldest_untiered=oldest_untiered)
    assert checkpoints.truncate_log()
    assert log.truncated == truncated


@pytest.mark.parametrize(
    ("share_bytes", "due_at"), [(1 << 40, EVERY_BYTES), (4 * EVERY_BYTES, EVERY_BYTES), (1200, 300)]
)
def test_checkpoint_is_due_after_so_many_bytes_of_log(share_bytes: int, due_at: int):
    checkpoints, log = new_checkpoints(share_bytes=share_bytes)
    for start in (0, due_at):
        log.ledger.held_bytes = start + due_at - 1
        assert not checkpoints.due
        log.ledger.held_bytes = start + due_at
        assert checkpoints.due
        log.next_entry += 1
        checkpoints.write()
        assert not checkpoints.due


def test_truncated_bytes_do_not_delay_the_next_checkpoint():
    checkpoints, log = new_checkpoints()
    log.ledger.held_bytes = 5000
    checkpoints.write()
    log.ledger.held_bytes, log.freed_bytes = 5400, 4900
    assert checkpoints.truncate_log()
    log.ledger.held_bytes += EVERY_BYTES - 401  # of which 400 were there before the truncation
    assert not checkpoints.due
    log.ledger.held_bytes += 1
    assert checkpoints.due


def test_volume_that_is_short_of_room_asks_for_one_checkpoint():
    checkpoints, log = new_checkpoints(oldest_untiered=0)
    log.ledger.wants_truncation = True
    assert checkpoints.due
    log.next_entry = 3
    checkpoints.write()
    assert not checkpoints.due, "the log cannot be truncated to it yet"
    checkpoints, log = checkpoints_at(3, oldest_untiered=None)
    log.ledger.wants_truncation = True
    assert checkpoints.truncate_log()
    assert checkpoints.due, "the log was truncated, but the volume still wants room"
    log.holds, log.next_entry = True, 4
    checkpoints.write()
    assert not checkpoints.due, "the newest one is right behind the one at which the log begins, but not durable yet"
