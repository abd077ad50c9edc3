"""A recovered container takes appends before what tier 2 lacks is back in memory; whoever needs bytes waits."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from list_ledger import ListLedger, framed, open_log
from store_world import World
from table_client import TableClient

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec import data_frames
from headrace.model.errors import CorruptError
from headrace.ports.ledger import LedgerEntry
from headrace.segmentstore.cache.block_pool import ENTRY_CHARGE_BYTES, BlockPool
from headrace.segmentstore.containers import backfill
from headrace.segmentstore.containers.recovery import Recovery

pytestmark = pytest.mark.anyio

SEGMENT, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
TRANSACTION = SEGMENT + "#transaction." + "0" * 31 + "1"
TABLE = "scope/_tables/table/0.#epoch.0"
WRITER = 5
APPENDS = [Random(number).randbytes(1000 * number) for number in range(1, 6)]
EVENT_HEADER = struct.pack(">ii", 0, 2)
"""Of an event of two bytes, which the store puts before what a conditional append brings."""

WAIT_S = 20.0


class HeldLoads:
    """Loads read nothing from the log until `release`, then a slice of a few bytes at a time."""

    def __init__(self, monkeypatch):
        self._released = threading.Event()
        self.error = None
        honest = backfill.Backfill._read_slice

        def held(load):
            assert self._released.wait(WAIT_S)
            if self.error is not None:
                raise self.error
            return honest(load)

        monkeypatch.setattr(backfill, "SLICE_BYTES", 1)
        monkeypatch.setattr(backfill.Backfill, "_read_slice", held)

    def release(self):
        self._released.set()

    def hold(self):
        self._released.clear()


@pytest.fixture
def loads(monkeypatch):
    held = HeldLoads(monkeypatch)
    yield held
    held.release()


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1)


async def killed(world: World, *, also=None):
    """A store wrote `APPENDS` and was killed before tier 2 had anything."""
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await running.store.owned[0].writer.stop()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        for number, data in enumerate(APPENDS, 1):
            await client.append(WRITER, number, data)
        if also is not None:
            await also(client)
    world.disk = world.disk.cut_power(1)


async def test_appends_continue_while_reads_wait_for_the_backfill(world: World, loads):
    async def more(client):  # the log goes on behind the last byte that is wanted
        await client.create(TABLE)

    await killed(world, also=more)
    async with world.running() as running:
        client, reader = await running.connect(), await running.connect()
        assert await client.set_up(SEGMENT, WRITER) == len(APPENDS)
        reader.send(wire.ReadSegment(SEGMENT, 0, 1 << 20, "", 11))
        await reader.drain_to_server()
        await client.append(WRITER, 6, b"new")
        expected = b"".join(APPENDS) + b"new"
        reply = await client.call(wire.ConditionalAppend(WRITER, 7, len(expected), b"er", 12))
        expected += EVENT_HEADER + b"er"
        assert reply == wire.DataAppended(WRITER, 7, 6, 12, len(expected))
        await client.create(OTHER)
        answer = asyncio.ensure_future(reader.receive())
        await client.call(wire.SealSegment(6, SEGMENT))
        assert not answer.done()
        assert not running.store.owned[0].backfill.is_done
        loads.release()
        assert (await answer).data == expected[: len((await answer).data)]
        assert await client.read_all(SEGMENT) == expected
        assert next(running.store.owned[0].backfill._entries, None) is None  # nothing of the old log is held
        await running.flush()
        running.store.owned[0].container.metadata.segments[SEGMENT].index.release_all()
        assert await client.read_all(SEGMENT) == expected


async def test_storage_writer_waits_for_the_bytes_it_is_to_store(world: World, loads):
    await killed(world)
    async with world.running() as running:
        owned = running.store.owned[0]
        await owned.writer.stop()
        world.clock.advance(2e6)
        storing = asyncio.ensure_future(owned.writer.run_pass())
        await asyncio.sleep(0)
        assert not storing.done()
        loads.release()
        await storing
        while not owned.writer._snapshots.written:  # after a recovery the first bytes wait for a snapshot
            await owned.container.log.durable()
            await owned.writer.run_pass()
        await owned.writer.run_pass()
        assert owned.container.metadata.segments[SEGMENT].tiered.length == sum(map(len, APPENDS))


async def test_callers_go_on_in_their_order(world: World, loads):
    """The last one comes in the turn in which all is loaded, and those who waited have not gone on yet."""
    await killed(world)
    async with world.running() as running:
        load, loaded, went_on = running.store.owned[0].backfill, asyncio.Event(), []
        place = load._place

        def noted(*arguments):
            place(*arguments)
            if load.is_done:
                loaded.set()

        async def wait(number):
            await load.wait()
            went_on.append(number)

        load._place = noted
        callers = [asyncio.ensure_future(wait(number)) for number in range(3)]
        await asyncio.sleep(0)
        loads.release()
        await loaded.wait()
        await wait(3)
        await asyncio.gather(*callers)
        assert went_on == [0, 1, 2, 3]


async def test_what_tier_2_has_is_read_while_the_rest_is_loaded(world: World, loads):
    stored = Random(8).randbytes(30_000)

    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 1, stored)
        await running.flush()
        await running.store.owned[0].container.log.durable()
        await running.store.owned[0].writer.stop()
        await client.append(WRITER, 2, b"not stored")
    world.disk = world.disk.cut_power(1)
    async with world.running() as running:
        reader, waiting = await running.connect(), await running.connect()
        waiting.send(wire.ReadSegment(SEGMENT, len(stored), 1 << 20, "", 11))
        read = b""
        while len(read) < len(stored):
            read += (await reader.call(wire.ReadSegment(SEGMENT, len(read), 1 << 20, "", 12))).data
        assert read == stored
        answer = asyncio.ensure_future(waiting.receive())
        assert not running.store.owned[0].backfill.is_done
        await reader.create(OTHER)
        assert not answer.done()
        loads.release()
        assert (await answer).data == b"not stored"


async def test_what_changes_meanwhile_is_right_afterwards(world: World, loads):
    """A truncation, a deletion, and a merge of bytes that are not here yet."""
    moved = Random(9).randbytes(5000)

    async def more(client):
        for number, name in enumerate((OTHER, TRANSACTION), WRITER + 1):
            await client.create(name)
            await client.set_up(name, number)
            await client.append(number, 1, moved)

    await killed(world, also=more)
    async with world.running() as running:
        client = await running.connect()
        merged = await client.call(wire.MergeSegments(3, SEGMENT, TRANSACTION))
        assert isinstance(merged, wire.SegmentsMerged)
        assert await client.call(wire.DeleteSegment(4, OTHER)) == wire.SegmentDeleted(4, OTHER)
        cut = len(APPENDS[0]) + 10
        assert await client.call(wire.TruncateSegment(5, SEGMENT, cut)) == wire.SegmentTruncated(5, SEGMENT)
        loads.release()
        expected = (b"".join(APPENDS) + moved)[cut:]
        assert await client.read_all(SEGMENT, start=cut) == expected
        await running.flush()
        running.store.owned[0].container.metadata.segments[SEGMENT].index.release_all()
        assert await client.read_all(SEGMENT, start=cut) == expected
        assert running.store.pool._promised_bytes == 0


async def test_a_table_waits_for_its_entries(world: World, loads):
    async def put(client):
        table = TableClient(client, TABLE)
        await table.create()
        await table.put((b"key", -1, b"value"))

    await killed(world, also=put)
    async with world.running() as running:
        client = await running.connect()
        asked = asyncio.ensure_future(TableClient(client, TABLE).values(b"key"))
        await (await running.connect()).create(OTHER)
        assert not asked.done()
        loads.release()
        assert await asked == [b"value"]


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_a_store_that_ends_amid_a_load_loses_nothing(world: World, loads, end):
    await killed(world)
    async with world.running(graceful=end == "stopped") as running:
        client = await running.connect()
        await client.set_up(SEGMENT, WRITER)
        await client.append(WRITER, 6, b"new")
        asyncio.get_running_loop().call_later(0.05, loads.release)
        if end == "killed":
            world.disk = world.disk.cut_power(2)
    async with world.running() as running:
        assert running.store.owned[0].backfill.is_done == (end == "stopped")
        assert await (await running.connect()).read_all(SEGMENT) == b"".join(APPENDS) + b"new"


async def test_a_log_that_cannot_be_read_stops_the_container(world: World, loads):
    await killed(world)
    async with world.running(graceful=False) as running:
        reader = await running.connect()
        reader.send(wire.ReadSegment(SEGMENT, 0, 1 << 20, "", 11))
        loads.error = OSError(5, "Input/output error")
        loads.release()
        assert isinstance(await reader.receive(), wire.ErrorMessage)
        assert await reader.closed()
        assert not running.store.owned
    ((container, error),) = world.failures
    assert (container, error.message) == (0, "the log of container 0 cannot be read: [Errno 5] Input/output error")


def test_room_is_kept_for_what_was_promised():
    pool = BlockPool(8 << 10, 1 << 10)
    promised = [pool.promise(1000, 0) for _ in range(4)]
    taken = 0
    while (reservation := pool.reserve(100)) is not None:
        taken += reservation.length + ENTRY_CHARGE_BYTES
    assert taken <= (8 << 10) - 4 * (1000 + ENTRY_CHARGE_BYTES)
    pool.release(promised[0])
    assert pool.reserve(100) is not None
    for reservation in promised[1:]:
        pool.load(reservation, memoryview(bytes(1000)))
    assert pool.used_bytes <= pool.capacity_bytes


async def test_load_begins_behind_the_end_of_a_tiered_operation():
    """The first entry that has bytes to load begins with the end of another append, which is not read again."""
    entries = ListLedger()
    log = open_log(entries)
    log.append(data_frames.encode_operation(data_frames.CreateOperation(1, SEGMENT, (), 0)), lambda _error: None)
    for number, (offset, data) in enumerate([(0, bytes(300)), (300, b"abc")], 1):
        log.append([data_frames.append_fields(1, offset, WRITER, number, 1, 0), data], lambda _error: None)
    log.append(data_frames.encode_operation(data_frames.StoredOperation(((1, 300),))), lambda _error: None)
    log.flush()
    logged = [LedgerEntry(number, memoryview(payload)) for number, payload in enumerate(entries.entries)]
    started: list[int] = []

    def recover(first: int = 0) -> Iterator[LedgerEntry]:
        started.append(first)
        return iter(logged[first:])

    ledger: Any = SimpleNamespace(recover=recover, continued_at=None)
    pool = BlockPool(64 << 10, 1 << 10)
    recovery = Recovery(0, pool, ManualClock())
    load = await recovery.run(ledger)
    (held,) = recovery.metadata.segments[SEGMENT].index.entries_behind(0)
    assert started == [0, held.ledger_entry]
    header, _ = data_frames.decode_frame(logged[held.ledger_entry].payload)
    assert header.continued_bytes, "the entry begins with the end of the first append"
    await load.load()
    assert (load.loaded_bytes, load.is_done, pool.untiered_bytes) == (3, True, 3)
    assert b"".join(held.parts) == b"abc"


async def test_log_that_lacks_what_it_had_is_corrupt():
    pool = BlockPool(64 << 10, 1 << 10)
    promised = {0: {8: pool.promise(3, 8)}, 5: {8: pool.promise(3, 8), 30: pool.promise(3, 30)}}
    load = backfill.Backfill(0, pool, iter(()), promised)
    with pytest.raises(CorruptError, match="lacks 3 appends"):
        await load.load()
    log = open_log(ListLedger())
    load.start(log)
    assert load._task is not None
    await load._task
    assert isinstance(log.failure, CorruptError), "those who wait for the bytes learn of it"


async def test_load_that_is_stopped_has_ended_and_fails_no_container():
    pool = BlockPool(64 << 10, 1 << 10)
    load, log = backfill.Backfill(0, pool, iter(()), {0: {8: pool.promise(3, 8)}}), open_log(ListLedger())
    load.start(log)
    running = load._task
    assert running is not None
    for _ in range(2):
        await load.stop()
        assert (running.cancelled(), load.is_done, log.failure) == (True, False, None)


@pytest.mark.parametrize(("more_bytes", "slices"), [(0, [2, 2, 1, 0]), (1, [3, 2, 0]), (-1, [2, 2, 1, 0])])
def test_slice_of_the_log_ends_with_its_bytes(monkeypatch, more_bytes: int, slices: list[int]):
    """A slice is copied in one turn of the loop."""
    operations = [data_frames.AppendOperation(1, 100 * number, WRITER, number, 1, 0, bytes(100)) for number in range(5)]
    payloads = [b"".join(framed(operation, sequence)) for sequence, operation in enumerate(operations)]
    monkeypatch.setattr(backfill, "SLICE_BYTES", 2 * len(payloads[0]) + more_bytes)
    entries = iter([LedgerEntry(number, memoryview(payload)) for number, payload in enumerate(payloads)])
    load = backfill.Backfill(0, BlockPool(64 << 10, 1 << 10), entries, {})
    assert [len(load._read_slice()) for _ in slices] == slices
