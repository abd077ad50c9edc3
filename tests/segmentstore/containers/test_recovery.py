"""A recovery loads what tier 2 lacks and nothing else, in bounded memory, and says what it did."""

from __future__ import annotations

import asyncio
import logging
import re
import tracemalloc
from itertools import pairwise
from random import Random

import pytest
from crc32c import crc32c
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec import data_frames
from headrace.codec.data_frames import CreateOperation
from headrace.codec.log_record_header import RecordKind
from headrace.model.errors import CorruptError
from headrace.segmentstore.cache import read_index
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.read_index import ReadIndex
from headrace.segmentstore.containers import recovery as recovery_module
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock
from headrace.segmentstore.containers.recovery import Recovery
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
    caplog.set_level(logging.INFO, logger="headrace.segmentstore.container_opening")

    def lines():
        found = [re.findall(r"(\w+)=(\S+)", record.getMessage()) for record in caplog.records]
        return [dict(line) for line in found if line and line[0] == ("event", "recovered")]

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
