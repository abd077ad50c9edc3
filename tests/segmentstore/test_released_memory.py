"""Memory of the cache is not used again while the log still reads it, even if the entry is durable and in tier 2."""

from __future__ import annotations

import asyncio

import pytest
from list_ledger import ListLedger, turn

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.errors import UnavailableError
from headrace.segmentstore.cache.block_pool import ENTRY_CHARGE_BYTES, BlockPool
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock

BLOCK_BYTES = 4096
DATA_BYTES = BLOCK_BYTES - ENTRY_CHARGE_BYTES  # a whole block


def filled(pool: BlockPool, byte: bytes, length: int = DATA_BYTES) -> Reservation:
    reservation = pool.reserve(length)
    assert reservation is not None
    reservation.fill([memoryview(byte * length)])
    return reservation


def append(log: OperationLog, data: Reservation) -> list[object]:
    told: list[object] = []
    log.append_framed([b"head", *data.parts], 4 + data.length, told.append, data)
    return told


def evict(pool: BlockPool, data: Reservation) -> list[Reservation | None]:
    """Tier 2 has `data`, and newer data takes all the room that there is."""
    pool.mark_tiered([data])
    pool.release(data)
    taken = []
    while (reservation := pool.reserve(DATA_BYTES)) is not None:
        reservation.fill([memoryview(b"!" * DATA_BYTES)])
        taken.append(reservation)
    return taken


def open_log(ledger: ListLedger, pool: BlockPool) -> OperationLog:
    return OperationLog(ledger, OrderingClock(ManualClock()), pool=pool)


@pytest.mark.parametrize("released_first", [False, True])
def test_a_block_is_not_used_again_before_it_is_released(run, released_first):
    async def scenario():
        ledger, pool = ListLedger(8192), BlockPool(2 * BLOCK_BYTES, BLOCK_BYTES)
        log = open_log(ledger, pool)
        data = filled(pool, b"a")
        views = data.parts
        told = append(log, data)
        await turn()
        if released_first:
            ledger.release()
        ledger.acknowledge()
        assert told == [None]
        taken = evict(pool, data)
        if released_first:
            assert len(taken) == 2
            assert bytes(views[0]) != b"a" * DATA_BYTES
            return
        assert len(taken) == 1, "the other block is still read by the log"
        assert b"".join(views) == b"a" * DATA_BYTES
        ledger.release()
        assert pool.reserve(DATA_BYTES) is not None

    run(scenario())


def test_blocks_of_a_split_operation_stay_until_its_last_frame(run):
    async def scenario():
        ledger, pool = ListLedger(1024), BlockPool(4 * BLOCK_BYTES, BLOCK_BYTES)
        log = open_log(ledger, pool)
        data = filled(pool, b"b", 2 * DATA_BYTES)
        expected = [bytes(part) for part in data.parts]
        views = data.parts
        assert len(views) == 2
        append(log, data)
        await turn()
        frames = len(ledger.entries)
        assert frames > 5
        ledger.acknowledge(frames)
        ledger.release(frames - 1)
        evict(pool, data)
        assert [bytes(view) for view in views] == expected
        ledger.release()
        assert pool.reserve(DATA_BYTES) is not None

    run(scenario())


def test_blocks_of_a_split_operation_outlive_its_last_frame(run):
    """A ledger that has copied the last frame releases it before the large ones."""

    async def scenario():
        ledger, pool = ListLedger(1024), BlockPool(4 * BLOCK_BYTES, BLOCK_BYTES)
        log = open_log(ledger, pool)
        data = filled(pool, b"b", 2 * DATA_BYTES)
        expected = [bytes(part) for part in data.parts]
        views = data.parts
        append(log, data)
        await turn()
        frames = len(ledger.entries)
        ledger.unreleased.reverse()
        ledger.acknowledge(frames)
        ledger.release(frames - 1)
        evict(pool, data)
        assert [bytes(view) for view in views] == expected
        ledger.release()
        assert pool.reserve(DATA_BYTES) is not None

    run(scenario())


def test_appends_of_one_frame_pin_their_block_once(run):
    async def scenario():
        ledger, pool = ListLedger(8192), BlockPool(2 * BLOCK_BYTES, BLOCK_BYTES)
        log = open_log(ledger, pool)
        small = [filled(pool, b"c", 100) for _ in range(5)]
        for data in small:
            append(log, data)
        await turn()
        assert small[0].block.references == 5 + 1
        ledger.release()
        assert small[0].block.references == 5

    run(scenario())


@pytest.mark.parametrize("submitted", [False, True])
def test_a_log_that_fails_keeps_no_memory(run, submitted):
    """A frame that was never submitted is released at once, one that was by the ledger."""

    async def scenario():
        ledger, pool = ListLedger(8192), BlockPool(2 * BLOCK_BYTES, BLOCK_BYTES)
        log = open_log(ledger, pool)
        data = filled(pool, b"d", 100)
        told = append(log, data)
        if submitted:
            await turn()
        log.fail(UnavailableError("the disk broke"))
        assert data.block.references == 1 + submitted
        if submitted:
            ledger.release()
            ledger.acknowledge(error=UnavailableError("the disk broke"))
        await asyncio.sleep(0)
        assert data.block.references == 1
        assert isinstance(told[0], UnavailableError)

    run(scenario())


def test_a_ledger_that_takes_nothing_releases_the_memory(run):
    async def scenario():
        ledger, pool = ListLedger(8192), BlockPool(2 * BLOCK_BYTES, BLOCK_BYTES)
        log = open_log(ledger, pool)
        data = filled(pool, b"e", 100)
        told = append(log, data)
        ledger.failure = UnavailableError("closed")
        await turn()
        await turn()
        assert data.block.references == 1
        assert isinstance(told[0], UnavailableError)

    run(scenario())
