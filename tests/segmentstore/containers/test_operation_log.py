"""Operations gather in frames, are split over them, are done in their order, and end with their log."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from list_ledger import ListLedger, open_log, read_all, turn

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec import data_frames
from headrace.codec.data_frames import FRAME_HEADER_BYTES, OPERATION_LENGTH_BYTES
from headrace.model.errors import FencedError, InvalidRequestError, UnavailableError
from headrace.segmentstore.cache.block_pool import ENTRY_CHARGE_BYTES, BlockPool
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.containers.operation_log import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    OPERATION_BYTES_MAX,
    OrderingClock,
    resolve,
)
from headrace.segmentstore.lease_gate import LeaseGate

pytestmark = pytest.mark.anyio


async def test_a_turn_is_a_frame():
    ledger = ListLedger()
    log = open_log(ledger)
    told = []
    assert [log.append([b"op", b"%d" % n], lambda error, n=n: told.append((n, error))) for n in range(3)] == [0] * 3
    assert not ledger.entries
    await turn()
    assert log.append([b"later"], lambda _error: told.append("later")) == 1
    await turn()
    assert [content for _, content in read_all(ledger.entries)[0]] == [b"op0", b"op1", b"op2", b"later"]
    assert len(ledger.entries) == 2
    assert log.durable_entry == -1
    ledger.acknowledge()
    assert told == [(0, None), (1, None), (2, None)]
    assert (log.durable_entry, log.durable_sequence, log.is_durable) == (0, 2, False)
    ledger.acknowledge()
    assert told[3:] == ["later"]
    assert (log.durable_entry, log.durable_sequence, log.is_durable) == (1, 3, True)


async def test_operations_begin_a_frame_or_are_split_when_too_large():
    ledger = ListLedger()
    log = open_log(ledger)
    told = []
    room = FRAME_BYTES_MIN - FRAME_HEADER_BYTES - OPERATION_LENGTH_BYTES
    small, whole, large = b"s" * 100, b"w" * room, bytes(range(256)) * 3
    entries = [
        log.append([operation[:7], operation[7:]], lambda _error, n=n: told.append(n))
        for n, operation in enumerate([small, small, whole, large, small])
    ]
    assert entries == [0, 0, 1, 2, 5]
    assert log.append([b"gathers with the one before"], lambda _error: told.append(5)) == 5
    await turn()
    operations, reader = read_all(ledger.entries)
    assert operations[3] == (2, large)
    assert reader.next_sequence == log.last_sequence + 1 == 6
    assert reader.last_ordering == log.current_ordering
    for durable, (entry, done) in enumerate([(0, 2), (1, 3), (1, 3), (1, 3), (1, 3), (5, 6)]):
        ledger.acknowledge()
        assert (log.durable_entry, told) == (entry, list(range(done))), durable
        assert log.durable_sequence == done - 1


async def test_operation_is_durable_with_its_last_frame():
    """Not before, also if nothing was logged before it."""
    ledger = ListLedger()
    log = open_log(ledger)
    log.append([bytes(4 * FRAME_BYTES_MIN)], lambda _error: None)
    log.flush()
    last = len(ledger.entries) - 1
    for _ in range(last):
        ledger.acknowledge()
        assert (log.durable_entry, log.durable_sequence, log.is_durable) == (-1, -1, False)
    ledger.acknowledge()
    assert (log.durable_entry, log.durable_sequence, log.is_durable) == (last, 0, True)


async def test_operation_that_fits_exactly_ends_its_frame():
    ledger = ListLedger()
    log = open_log(ledger)
    first = b"f" * 100
    room = FRAME_BYTES_MIN - FRAME_HEADER_BYTES - 2 * OPERATION_LENGTH_BYTES - len(first)
    assert [log.append([operation], lambda _error: None) for operation in (first, bytes(room), b"n")] == [0, 0, 1]
    await turn()
    assert len(ledger.entries[0]) == FRAME_BYTES_MIN
    assert [content for _, content in read_all(ledger.entries)[0]] == [first, bytes(room), b"n"]


async def test_operation_too_long_by_a_byte_begins_the_next_frame():
    ledger = ListLedger()
    log = open_log(ledger)
    first = b"f" * 100
    room = FRAME_BYTES_MIN - FRAME_HEADER_BYTES - 2 * OPERATION_LENGTH_BYTES - len(first)
    assert [log.append([operation], lambda _error: None) for operation in (first, bytes(room + 1))] == [0, 1]
    await turn()
    assert len(ledger.entries) == 2


async def test_waiters_are_called_between_surrounding_operations():
    ledger = ListLedger()
    log = open_log(ledger)
    told = []
    log.when_durable(lambda: told.append("at once"))
    log.append([b"1"], lambda _error: told.append(1))
    log.when_durable(lambda: told.append("between"))
    log.append([b"2"], lambda _error: told.append(2))
    durable = asyncio.ensure_future(log.durable())
    await turn()
    assert told == ["at once"]
    log.append([b"3"], lambda _error: told.append(3))
    await turn()
    ledger.acknowledge()
    await turn()
    assert (durable.done(), durable.exception()) == (True, None)
    assert told == ["at once", 1, "between", 2]


async def test_a_truncation_point_is_the_begin_of_a_frame():
    ledger = ListLedger()
    log = open_log(ledger)
    log.append([b"before"], lambda _error: None)
    assert log.flush() == 1
    assert log.flush() == 1
    assert log.append([b"checkpoint"], lambda _error: None) == 1
    log.truncate(1)
    assert log.append([b"behind"], lambda _error: None) == 3
    log.close()
    assert [content for _, content in read_all(ledger.entries[:2] + ledger.entries[3:])[0]] == [
        b"before",
        b"checkpoint",
        b"behind",
    ]
    log.append([b"more"], lambda _error: None)
    await turn()
    assert isinstance(log.failure, FencedError)


async def test_after_a_failure_all_waiters_get_the_error():
    ledger = ListLedger()
    failures, told = [], []
    log = open_log(ledger, on_failure=failures.append)
    for frame in range(3):
        log.append([b"op"], told.append)
        log.when_durable(lambda: told.append("durable"))
        if frame < 2:
            await turn()
    waiting = log.expect()
    ledger.acknowledge(error=OSError("disk says no"))
    ledger.acknowledge()
    assert (log.durable_entry, log.durable_sequence) == (-1, -1), "an entry behind the failed one is not in the log"
    assert len(told) == 2  # the one that still gathered is told from the loop, not from in here
    await turn()
    await turn()
    assert len(told) == 3
    assert all(isinstance(error, UnavailableError) for error in told)
    assert failures == [log.failure] == [waiting.exception()]
    with pytest.raises(UnavailableError):
        log.append([b"op"], told.append)
    with pytest.raises(UnavailableError):
        await log.durable()
    assert len(ledger.entries) == 2


@pytest.mark.parametrize(("stop", "reported"), [("fail", 1), ("end", 0)])
async def test_the_end_of_a_log_is_no_failure_of_the_container(stop, reported):
    ledger = ListLedger()
    failures, told = [], []
    log = open_log(ledger, on_failure=failures.append)
    log.append([b"submitted"], told.append)
    await turn()
    log.append([b"open"], told.append)
    waiting, error = log.expect(), FencedError("handed over")
    getattr(log, stop)(error)
    assert isinstance(ledger.failure, FencedError), "the ledger is closed"
    ledger.acknowledge()
    await turn()
    assert told == [error, error], "the callers learn of the end in both cases"
    assert waiting.exception() is log.failure is error
    log.fail(UnavailableError("later"))
    assert len(failures) == reported
    with pytest.raises(FencedError):
        log.append([b"late"], told.append)


async def test_a_defect_in_telling_one_leaves_nobody_waiting():
    ledger = ListLedger()
    told, failures = [], []
    log = open_log(ledger, on_failure=failures.append)

    def defective(_error):
        raise ZeroDivisionError("a defect")

    for reached in (told.append, defective, told.append):
        log.append([b"op"], reached)
    await turn()
    ledger.acknowledge()
    assert told == [None, log.failure]
    assert failures == [log.failure]
    assert "a defect" in str(log.failure)


async def test_full_ledger_fails_the_log_with_its_pending_operations():
    ledger = ListLedger()
    told, failures = [], []
    log = open_log(ledger, on_failure=failures.append)
    log.append([b"op"], told.append)
    ledger.failure = FencedError("a newer owner")
    with pytest.raises(FencedError):
        log.append([bytes(FRAME_BYTES_MIN)], told.append)
    assert not told
    await turn()
    await turn()
    assert told == failures == [log.failure]
    assert isinstance(log.failure, FencedError)


async def test_bounds():
    ledger = ListLedger()
    log = open_log(ledger)
    with pytest.raises(InvalidRequestError, match="exceeds"):
        log.append([bytes(OPERATION_BYTES_MAX + 1)], lambda _error: None)
    await turn()
    assert not ledger.entries
    assert log.last_sequence == -1
    with pytest.raises(InvalidRequestError, match="no frame"):
        open_log(ListLedger(FRAME_BYTES_MIN - 1))
    ample = ListLedger(1 << 30)
    log = open_log(ample)
    log.append([bytes(1 << 20)], lambda _error: None)
    log.append([bytes(OPERATION_BYTES_MAX)], lambda _error: None)
    log.close()
    assert len(ample.entries) == 1 + -(-(OPERATION_BYTES_MAX + 4) // (FRAME_BYTES_MAX - FRAME_HEADER_BYTES))
    assert max(map(len, ample.entries)) == FRAME_BYTES_MAX
    assert [len(content) for _, content in read_all(ample.entries)[0]] == [1 << 20, OPERATION_BYTES_MAX]


def test_ordering_never_stands_still_and_never_goes_back():
    wall = ManualClock(5)
    clock = OrderingClock(wall)
    numbers = [clock.next(), clock.next()]
    wall.advance(1)
    numbers.append(clock.next())
    clock.observe(9000)
    clock.observe(8000)
    numbers.append(clock.next())
    assert numbers == [5000, 5001, 6000, 9001]


async def test_a_failure_without_a_waiter_is_not_reported_to_the_loop():
    """The caller of an operation that is refused, or whose request was cancelled, does not await its future."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["message"]))
    log = open_log(ListLedger())
    log.append([b"op"], lambda _error: None)
    log.expect().cancel()
    log.expect()
    log.fail(UnavailableError("the journal failed"))
    log.expect()  # and one after the failure
    await turn()
    del log  # asyncio reports an error when its future goes
    gc.collect()
    assert reported == []


async def test_failure_passes_over_waiters_that_have_ended():
    log = open_log(ListLedger())
    waiting = [log.expect() for _ in range(3)]
    for ended in waiting[::2]:
        resolve(ended)
    log.fail(UnavailableError("the journal failed"))
    assert [each.exception() for each in waiting] == [None, log.failure, None]


async def test_waiter_that_has_gone_is_not_resolved():
    log = open_log(ListLedger())
    cancelled, failed = log.expect(), log.expect()
    cancelled.cancel()
    failed.set_exception(UnavailableError("refused"))
    for each in (cancelled, failed):
        resolve(each)
    assert (cancelled.cancelled(), type(failed.exception())) == (True, UnavailableError)


async def test_log_keeps_no_future_that_has_ended():
    log = open_log(ListLedger())
    resolved, cancelled = log.expect(), log.expect()
    resolve(resolved)
    cancelled.cancel()
    await turn()
    left = [weakref.ref(resolved), weakref.ref(cancelled)]
    del resolved, cancelled
    gc.collect()
    assert [each() for each in left] == [None, None]


async def test_nothing_is_reported_while_the_lease_may_have_ended():
    clock = ManualClock()
    gate = LeaseGate(clock)
    gate.extend(clock.monotonic_s() + 10)
    ledger, told = ListLedger(), []
    log = open_log(ledger, gate=gate)
    for frame in range(3):
        log.append([b"op"], lambda error, frame=frame: told.append((frame, error)))
        await turn()
    ledger.acknowledge()
    clock.advance(11_000)
    ledger.acknowledge()
    assert (told, log.durable_entry, log.is_durable) == ([(0, None)], 0, False)
    gate.extend(clock.monotonic_s() + 10)
    assert (told, log.durable_entry) == ([(0, None), (1, None)], 1)
    gate.close()
    ledger.acknowledge(error=FencedError("a newer owner"))
    assert told[2:] == [(2, log.failure)], "an error waits for no lease"
    assert isinstance(log.failure, FencedError)


async def test_end_of_a_log_waits_for_no_lease():
    clock = ManualClock()
    gate = LeaseGate(clock)
    gate.extend(clock.monotonic_s() + 10)
    clock.advance(11_000)
    assert not gate.is_open
    log, told = open_log(ListLedger(), gate=gate), []
    log.append([b"open"], told.append)
    log.end(error := FencedError("handed over"))
    await turn()
    assert told == [error]


async def test_suspended_log_refuses_operations_until_it_resumes():
    ledger, told = ListLedger(), []
    log = open_log(ledger)
    log.append([b"before"], told.append)
    refusal = UnavailableError("the last snapshot was written")
    log.suspend(refusal)
    assert len(ledger.entries) == 1, "what was accepted before is submitted"
    with pytest.raises(UnavailableError, match="last snapshot"):
        log.append([b"refused"], told.append)
    ledger.acknowledge()
    assert (told, log.failure, log.last_sequence) == ([None], None, 0)
    log.resume()
    log.append([b"after"], told.append)
    await turn()
    assert [content for _, content in read_all(ledger.entries)[0]] == [b"before", b"after"]


async def test_failed_log_stays_failed_whatever_is_suspended():
    log, told = open_log(ListLedger()), []
    failure = FencedError("a newer owner")
    log.fail(failure)
    log.suspend(UnavailableError("later"))
    for _ in range(2):
        with pytest.raises(FencedError):
            log.append([b"op"], told.append)
        log.resume()
    log.when_durable(lambda: told.append("durable"), lambda: told.append("failed"))
    assert told == ["failed"]


async def test_upcoming_ordering_is_between_earlier_and_later_ones():
    log = open_log(ListLedger())
    for _ in range(3):
        upcoming = log.upcoming_ordering
        log.append([b"op"], lambda _error: None)
        first = log.current_ordering
        assert upcoming <= first == log.upcoming_ordering, "the next operation is in the same frame"
        await turn()
        assert log.upcoming_ordering > first


async def test_end_of_a_failed_log_keeps_its_error():
    """A container that has failed is closed afterwards. Its callers learn why it failed."""
    log, told = open_log(ListLedger()), []
    failure = UnavailableError("the journal failed")
    log.append([b"op"], told.append)
    log.fail(failure)
    log.end(FencedError("handed over"))
    with pytest.raises(UnavailableError, match="the journal failed"):
        log.append([b"late"], told.append)
    await turn()
    assert told == [failure]
    assert log.failure is failure


def references(*reserved: Reservation) -> list[int]:
    return [block.references for each in reserved for block in each.blocks]


@pytest.mark.parametrize("ends", [False, True])
async def test_bytes_stay_until_each_frame_with_them_is_released(ends: bool):
    """The ledger may report a frame as durable, and still read its bytes for a slow replica."""
    pool = BlockPool(64 << 10, 1 << 10)
    ledger = ListLedger()
    log = open_log(ledger, pool=pool)
    reserved = [pool.reserve(length) for length in (20, 20, 1500)]
    small, _, large = reserved
    assert small is not None
    assert large is not None
    before = references(small, large)
    for each in reserved:
        assert each is not None
        parts = [data_frames.encode_operation_length(each.length), *each.parts]
        log.append_framed(parts, OPERATION_LENGTH_BYTES + each.length, lambda _error: None, each)
    if ends:
        log.end(FencedError("handed over"))  # the open frame is never submitted, and so not released by the ledger
    else:
        log.flush()
    last = len(ledger.unreleased) - (not ends)
    assert last > 2
    assert references(small)[0] > before[0]
    for frame in range(last):
        ledger.acknowledge()
        assert all(now > idle for now, idle in zip(references(large), before[1:], strict=True)), frame
        ledger.release()
    if not ends:
        assert all(now > idle for now, idle in zip(references(large), before[1:], strict=True))
        ledger.release()
    assert references(small, large) == before


async def test_each_block_of_a_frame_is_pinned_once():
    pool = BlockPool(64 << 10, 4 << 10)
    ledger = ListLedger(8 << 10)
    log = open_log(ledger, pool=pool)
    lengths = (1000, 3096 - 2 * ENTRY_CHARGE_BYTES, 700)  # two fill a block with their charge, and one is in the next
    reserved = [each for length in lengths if (each := pool.reserve(length)) is not None]
    first, same, other = reserved
    assert first.block is same.block is not other.block
    before = references(*reserved)
    for each in reserved:
        parts = [data_frames.encode_operation_length(each.length), *each.parts]
        log.append_framed(parts, OPERATION_LENGTH_BYTES + each.length, lambda _error: None, each)
    log.flush()
    assert len(ledger.entries) == 1
    assert references(*reserved) == [count + 1 for count in before]
    ledger.release()
    assert references(*reserved) == before


async def test_all_blocks_are_pinned_behind_a_shared_one():
    """The second reservation begins in the last block of the first one, which the frame has pinned already."""
    pool = BlockPool(64 << 10, 1 << 10)
    ledger = ListLedger(8 << 10)
    log = open_log(ledger, pool=pool)
    first, second = (pool.reserve(length) for length in (20, 1500))
    assert first is not None
    assert second is not None
    assert second.block is first.block
    before = references(second)
    assert len(before) > 1
    for each in (first, second):
        parts = [data_frames.encode_operation_length(each.length), *each.parts]
        log.append_framed(parts, OPERATION_LENGTH_BYTES + each.length, lambda _error: None, each)
    log.flush()
    assert len(ledger.entries) == 1
    assert all(now > idle for now, idle in zip(references(second), before, strict=True))
    ledger.release()
    assert references(second) == before


async def test_log_without_a_pool_pins_nothing():
    pool = BlockPool(64 << 10, 1 << 10)
    ledger, told = ListLedger(), []
    log = open_log(ledger)
    data = pool.reserve(500)
    assert data is not None
    before = references(data)
    log.append_framed([data_frames.encode_operation_length(500), *data.parts], 504, told.append, data)
    log.flush()
    for _ in ledger.entries:
        assert references(data) == before
        ledger.acknowledge()
        ledger.release()
    assert (told, references(data)) == ([None], before)
