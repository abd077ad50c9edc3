"""Operations gather in frames, are split over them, are done in their order, and come back as they were."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec import data_frames
from headrace.codec import wire_commands as wire
from headrace.codec.data_frames import FRAME_HEADER_BYTES, OPERATION_LENGTH_BYTES
from headrace.model.errors import CorruptError, FencedError, InvalidRequestError, UnavailableError
from headrace.segmentstore.containers.frame_reader import OPERATION_BYTES_MAX, FrameReader
from headrace.segmentstore.containers.operation_log import FRAME_BYTES_MAX, FRAME_BYTES_MIN, OperationLog
from headrace.segmentstore.containers.ordering_clock import OrderingClock
from headrace.segmentstore.log.journal import Journal
from headrace.segmentstore.log.journal_ledgers import JournalLedgers

SEGMENT = "scope/stream/0.#epoch.0"


class ListLedger:
    """Entries in a list, durable when `acknowledge` says so."""

    def __init__(self, entry_bytes_max=FRAME_BYTES_MIN):
        self.entry_bytes_max = entry_bytes_max
        self.entries = []
        self.failure = None
        self._undone = []

    @property
    def next_entry(self):
        return len(self.entries)

    def append(self, parts, done):
        if self.failure is not None:
            raise self.failure
        entry = b"".join(parts)
        assert len(entry) <= self.entry_bytes_max
        self.entries.append(entry)
        self._undone.append(done)
        return len(self.entries) - 1

    def acknowledge(self, count=1, error=None):
        for _ in range(count):
            self._undone.pop(0)(error)

    def truncate(self, before_entry):
        self.append((), lambda _error: None)

    def close(self):
        self.failure = self.failure or FencedError("the ledger is closed")


def turn():
    return asyncio.sleep(0)


def open_log(ledger, reader=None):
    clock = OrderingClock(ManualClock())
    clock.observe(reader.last_ordering if reader else 0)
    return OperationLog(ledger, clock, reader.next_sequence if reader else 0)


def read_all(entries):
    reader = FrameReader(0)
    operations = [
        (logged.entry, bytes(logged.content))
        for number, entry in enumerate(entries)
        for logged in reader.read(number, memoryview(entry))
    ]
    return operations, reader


def read_on(entries, first):
    """From an entry in the middle on."""
    reader = FrameReader(0, resumes=True)
    return [
        (logged.entry, bytes(logged.content))
        for number, entry in enumerate(entries)
        if number >= first
        for logged in reader.read(number, memoryview(entry))
    ]


def test_a_turn_is_a_frame(run):
    async def scenario():
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

    run(scenario())


def test_an_operation_that_does_not_fit_begins_a_frame_and_one_that_fits_none_is_split(run):
    async def scenario():
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

    run(scenario())


def test_who_waits_is_told_between_the_operations_before_and_behind(run):
    async def scenario():
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
        assert durable.done()
        assert told == ["at once", 1, "between", 2]

    run(scenario())


def test_a_truncation_point_is_the_begin_of_a_frame(run):
    async def scenario():
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

    run(scenario())


def test_after_a_failure_all_that_waits_is_told_so_and_nothing_else(run):
    async def scenario():
        ledger = ListLedger()
        log = open_log(ledger)
        failures, told = [], []
        log.on_failure = failures.append
        for frame in range(3):
            log.append([b"op"], told.append)
            log.when_durable(lambda: told.append("durable"))
            if frame < 2:
                await turn()
        waiting = log.expect()
        ledger.acknowledge(error=OSError("disk says no"))
        ledger.acknowledge()
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

    run(scenario())


def test_a_defect_in_telling_one_leaves_nobody_waiting(run):
    async def scenario():
        ledger = ListLedger()
        log = open_log(ledger)
        told, failures = [], []
        log.on_failure = failures.append

        def defective(_error):
            raise ZeroDivisionError("a defect")

        for reached in (told.append, defective, told.append):
            log.append([b"op"], reached)
        await turn()
        ledger.acknowledge()
        assert told == [None, log.failure]
        assert failures == [log.failure]
        assert "a defect" in str(log.failure)

    run(scenario())


def test_a_ledger_that_takes_no_more_fails_the_log_with_what_had_gathered(run):
    async def scenario():
        ledger = ListLedger()
        log = open_log(ledger)
        told, failures = [], []
        log.on_failure = failures.append
        log.append([b"op"], told.append)
        ledger.failure = FencedError("a newer owner")
        with pytest.raises(FencedError):
            log.append([bytes(FRAME_BYTES_MIN)], told.append)
        assert not told
        await turn()
        await turn()
        assert told == failures == [log.failure]
        assert isinstance(log.failure, FencedError)

    run(scenario())


def test_bounds(run):
    async def scenario():
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

    run(scenario())


lives = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 900), st.booleans()), max_size=12),
        st.integers(0, 12),
    ),
    max_size=4,
)


@given(lives)
def test_what_survives_is_a_prefix_of_each_life(lives):
    """Each life logs operations, with or without a turn of the loop behind them, and loses some of its last entries."""

    async def scenario():
        entries, expected, number = [], [], 0
        for operations, lost_entries in lives:
            reader = read_all(entries)[1]
            ledger = ListLedger()
            ledger.entries = list(entries)
            log = open_log(ledger, reader)
            logged = []
            for length, turns in operations:
                number += 1
                content = (b"%d " % number * length)[:length]
                log.append([content[:9], memoryview(content)[9:]], lambda _error: None)
                logged.append(content)
                if turns:
                    await turn()
            log.flush()
            kept = max(len(entries), len(ledger.entries) - lost_entries)
            complete = kept == len(ledger.entries)
            entries = ledger.entries[:kept]
            found, reader = read_all(entries)
            contents = [content for _, content in found]
            assert contents[: len(expected)] == expected
            assert contents[len(expected) :] == logged[: len(contents) - len(expected)]
            assert not complete or len(contents) == len(expected) + len(logged)
            assert reader.next_sequence == len(contents)
            for first in {entry for entry, _ in found}:
                assert read_on(entries, first) == [(entry, content) for entry, content in found if entry >= first]
            expected = contents

    asyncio.run(scenario())


def frames(*headers_and_contents):
    return [
        data_frames.encode_frame_header(data_frames.FrameHeader(*header)) + content
        for header, content in headers_and_contents
    ]


OPERATION = data_frames.encode_operation_length(3) + b"abc"


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        (frames(((0, 1, 0), b"")), "no data frame"),
        (frames(((0, 1, 5), b"abc")), "claims to continue"),
        (frames(((0, 1, 3), b"abc")), "begin is missing"),
        (frames(((0, 1, 0), OPERATION), ((2, 2, 0), OPERATION)), "expected 1"),
        (frames(((0, 1, 0), OPERATION), ((1, 1, 0), OPERATION)), "has ordering 1"),
        (frames(((0, 1, 0), OPERATION[:-1]), ((1, 2, 2), b"cd")), "beyond its end"),
        (frames(((0, 1, 0), OPERATION[:-1]), ((0, 2, 1), b"c")), "expected 1"),
        (frames(((0, 1, 0), OPERATION[:3])), "no operation"),
        (frames(((0, 1, 0), data_frames.encode_operation_length(0))), "of 0 bytes"),
        (frames(((0, 1, 0), data_frames.encode_operation_length(OPERATION_BYTES_MAX + 1))), "holds an operation of"),
    ],
)
def test_frames_that_contradict_each_other_are_corrupt(entries, complaint):
    with pytest.raises(CorruptError, match=complaint):
        read_all(entries)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_hurt_the_reader(entries):
    try:
        read_all([b"\xf1" + entry for entry in entries])
    except CorruptError:
        return


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


def test_a_log_from_before_there_were_frames_goes_on(world, run):
    """As 0.1.0 wrote it: an operation is an entry."""
    world.container_count = 1

    async def scenario():
        loop = asyncio.get_running_loop()
        journal = Journal(world.disk, lambda: 1, loop.call_soon_threadsafe, file_bytes=world.file_bytes)
        journal.start()
        ledger = JournalLedgers(journal).open(0, world.claim(0))
        for operation in (
            data_frames.CreateOperation(1, SEGMENT, (), 1000),
            data_frames.AppendOperation(1, 0, 5, 7, 1, 1000, memoryview(b"old ")),
            data_frames.AppendOperation(1, 4, 5, 8, 1, 1000, memoryview(b"older ")),
        ):
            written = loop.create_future()
            ledger.append(data_frames.encode_operation(operation), written.set_result)
            assert await written is None
        await asyncio.to_thread(journal.close)
        for number, data in ((9, b"new "), (10, b"newer")):
            async with world.running(graceful=False) as running:
                client = await running.connect()
                assert await client.set_up(SEGMENT, 5) == number - 1
                await client.append(5, number, data)
                assert running.store.owned[0].container.log.last_sequence >= number - 6
        async with world.running() as running:
            assert await (await running.connect()).read_all(SEGMENT) == b"old older new newer"

    run(scenario())


def test_an_append_larger_than_a_journal_file_s_frames_survives_a_crash(world, run):
    world.file_bytes = 256 << 10
    data = bytes(range(256)) * 4096  # 1 MiB, five files
    replies = []

    async def scenario():
        async with world.running(graceful=False) as running:
            client = await running.connect()
            await client.create(SEGMENT)
            await client.set_up(SEGMENT, 5)
            client.send(wire.AppendBlockEnd(5, len(data), data, 1, 1, 9), wire.AppendBlockEnd(5, 3, b"end", 1, 2, 9))
            while not replies or replies[-1].event_number < 2:
                replies.append(await client.receive())
        world.disk = world.disk.cut_power(3)
        async with world.running() as running:
            assert await (await running.connect()).read_all(SEGMENT) == data + b"end"

    run(scenario())
