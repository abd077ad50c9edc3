"""The objects of a log: chains with holes are refused, and objects are fetched for a while before that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from ledger_worlds import Reports
from object_worlds import CONTAINER, World

from headrace.codec.log_objects import (
    LOG_OBJECT_BYTES_MAX,
    LOG_OBJECT_HEADER_BYTES,
    LogObjectHeader,
    container_log_prefix,
    encode_entry,
    encode_log_object,
    ledger_prefix,
    log_object_name,
)
from headrace.model.backoff import doubled_pause
from headrace.model.container_logs import LedgerStart
from headrace.model.errors import (
    AlreadyExistsError,
    CorruptError,
    HeadraceError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from headrace.ports.chunk_storage import ChunkStorage
from headrace.segmentstore.log.objects import log_object_chain
from headrace.segmentstore.log.objects.log_object_chain import (
    ATTEMPTS_MAX,
    READ_AHEAD_BYTES,
    READ_AHEAD_OBJECTS,
    RETRY_FIRST_S,
    RETRY_MOST_S,
    ClosedLedger,
    LogObject,
    LogObjectReader,
    _check_complete,
    _check_length,
    close_ledger,
    delete_garbage,
    find_log,
)
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits

pytestmark = pytest.mark.anyio


def objects(*ranges: tuple[int, int]) -> list[LogObject]:
    return [LogObject(0, number, first, end, 100, 0) for number, (first, end) in enumerate(ranges)]


@pytest.mark.parametrize(
    ("ranges", "truncated_before", "next_entry"),
    [
        ([(0, 4), (4, 9)], 0, 9),
        ([(0, 4), (4, 9)], 2, 9),
        ([], 9, 9),
        ([(4, 9)], 9, 9),
    ],
)
def test_whole_chain_is_accepted(ranges: list[tuple[int, int]], truncated_before: int, next_entry: int):
    _check_complete(CONTAINER, objects(*ranges), truncated_before, next_entry)


@pytest.mark.parametrize(
    ("ranges", "truncated_before", "next_entry", "problem"),
    [
        ([(0, 4), (5, 9)], 0, 9, "lacks the entries 4 to 4"),
        ([(0, 4), (3, 9)], 0, 9, "lacks the entries 4 to 2"),
        ([(3, 9)], 2, 9, "lacks the entries 2 to 2"),
        ([(0, 4)], 0, 9, "lacks the entries 4 to 8"),
        ([], 0, 1, "lacks the entries 0 to 0"),
        ([(0, 4)], 5, 4, "is truncated to 5 and ends before 4"),
    ],
)
def test_chain_with_a_hole_is_refused(
    ranges: list[tuple[int, int]], truncated_before: int, next_entry: int, problem: str
):
    with pytest.raises(CorruptError, match=problem):
        _check_complete(CONTAINER, objects(*ranges), truncated_before, next_entry)


async def test_takeover_notices_a_hole_in_front_of_its_objects(monkeypatch: pytest.MonkeyPatch):
    """The headers are whole, and an object in the middle was lost."""
    world, reports = World(ObjectLogLimits(gather_s=0.0)), Reports()
    ledger = await world.open()
    for number in range(3):
        reports.append(ledger, b"%d" % number)
        await reports.all()
    honest = log_object_chain._read_headers

    async def without_the_first(*arguments: object) -> list[LogObject]:
        return (await honest(*arguments))[1:]  # type: ignore[arg-type]

    monkeypatch.setattr(log_object_chain, "_read_headers", without_the_first)
    with pytest.raises(CorruptError, match="lacks the entries 0 to 0"):
        await world.open()


async def put(
    chunks: ChunkStorage,
    epoch: int,
    sequence: int,
    first: int,
    count: int,
    *,
    truncated_before: int = 0,
    lacks: int = 0,
) -> None:
    """An object of `count` entries, made with two PUTs in flight; without `lacks` bytes of its end."""
    header = LogObjectHeader(CONTAINER, epoch, sequence, first, truncated_before, 0, 0, 0, 0, 2)
    entries = [encode_entry(CONTAINER, epoch, first + number, truncated_before, [b"entry"]) for number in range(count)]
    raw = b"".join(encode_log_object(header, entries))
    await chunks.put(log_object_name(CONTAINER, epoch, sequence), [raw[: len(raw) - lacks]])


async def test_ledger_without_an_object_is_closed_at_its_beginning():
    """The first PUT of a late owner must meet the tombstone."""
    chunks = World().chunks.stored
    assert await close_ledger(chunks, CONTAINER, 3) == ClosedLedger(range(0), 0)
    with pytest.raises(AlreadyExistsError):
        await put(chunks, 3, 0, 0, 1)


@pytest.mark.parametrize("missing", [0, 1])
async def test_object_before_those_in_flight_was_acknowledged(missing: int):
    """With two PUTs in flight the last one began when all but the one before it were durable."""
    chunks = World().chunks.stored
    for sequence in {0, 1, 2, 3} - {missing}:
        await put(chunks, 0, sequence, sequence, 1)
    with pytest.raises(CorruptError, match=f"{log_object_name(CONTAINER, 0, missing)} is missing"):
        await close_ledger(chunks, CONTAINER, 0)


async def test_object_among_those_in_flight_ends_the_ledger():
    chunks = World().chunks.stored
    for sequence in (0, 1, 3):
        await put(chunks, 0, sequence, sequence, 1)
    assert await close_ledger(chunks, CONTAINER, 0) == ClosedLedger(range(2), 0)


async def test_log_consists_of_objects_with_needed_entries():
    """Not of those before the truncation point, nor of the object without entries that told it."""
    chunks = World().chunks.stored
    for sequence in range(3):
        await put(chunks, 0, sequence, 2 * sequence, 2)
    await put(chunks, 0, 3, 6, 0, truncated_before=4)
    closed = await close_ledger(chunks, CONTAINER, 0)
    log = await find_log(chunks, CONTAINER, (LedgerStart(0, 0),), 0, closed)
    assert [each.sequence for each in log.objects] == [2]
    assert (log.truncated_before, log.next_entry) == (4, 6)


async def test_object_that_lacks_bytes_is_not_part_of_a_log():
    chunks = World().chunks.stored
    await put(chunks, 4, 0, 0, 1, lacks=5)
    closed = await close_ledger(chunks, CONTAINER, 4)
    with pytest.raises(CorruptError, match=f"object {log_object_name(CONTAINER, 4, 0)} has .* bytes, its header says"):
        await find_log(chunks, CONTAINER, (LedgerStart(4, 0),), 0, closed)


async def test_garbage_is_of_earlier_ledgers(monkeypatch: pytest.MonkeyPatch):
    """An owner that was taken over must not delete what the next one has acknowledged."""
    chunks = World().chunks.stored
    for epoch in (1, 2, 3, 4):
        await put(chunks, epoch, 0, epoch, 1)
    stranger = f"{container_log_prefix(CONTAINER)}stranger"
    await chunks.put(stranger, [b"x"])
    assert await delete_garbage(chunks, CONTAINER, 3, [LogObject(2, 0, 2, 3, 100, 0)]) == 1
    left = [each.name for each in await chunks.list(container_log_prefix(CONTAINER))]
    assert left == [*(log_object_name(CONTAINER, epoch, 0) for epoch in (2, 3, 4)), stranger]
    monkeypatch.setattr(chunks, "delete", None)  # S3 refuses a request that names no object
    assert await delete_garbage(chunks, CONTAINER, 2, []) == 0


async def test_objects_are_listed_page_by_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_object_chain, "LISTED_AT_ONCE", 2)
    chunks = World().chunks.stored
    for sequence in range(5):
        await put(chunks, 0, sequence, sequence, 1)
    found = await log_object_chain._list_all(chunks, ledger_prefix(CONTAINER, 0))
    assert [each.name for each in found] == [log_object_name(CONTAINER, 0, sequence) for sequence in range(5)]


@pytest.mark.parametrize("length", [LOG_OBJECT_HEADER_BYTES + 49, LOG_OBJECT_BYTES_MAX + 1])
def test_object_of_an_impossible_length_is_refused(length: int):
    header = LogObjectHeader(CONTAINER, 0, 0, 0, 0, 0, 1, 50, 0, 1)
    with pytest.raises(CorruptError, match=f"has {length} bytes, its header says at least"):
        _check_length(CONTAINER, 0, header, length)
    for possible in (LOG_OBJECT_HEADER_BYTES + 50, LOG_OBJECT_BYTES_MAX):
        _check_length(CONTAINER, 0, header, possible)


@pytest.mark.parametrize("length", [1, LOG_OBJECT_HEADER_BYTES - 1])
async def test_object_that_is_too_short_for_a_header_is_refused(length: int):
    chunks = World().chunks.stored
    await chunks.put(log_object_name(CONTAINER, 0, 0), [bytes(length)])
    with pytest.raises(CorruptError, match=f"has {length} bytes, too few for a header"):
        await log_object_chain._list_ledger(chunks, CONTAINER, 0)


async def test_tombstones_and_objects_are_listed():
    chunks = World().chunks.stored
    await chunks.put(log_object_name(CONTAINER, 0, 0), [bytes(LOG_OBJECT_HEADER_BYTES)])
    await chunks.put(log_object_name(CONTAINER, 0, 1), [b""])
    assert await log_object_chain._list_ledger(chunks, CONTAINER, 0) == {0: LOG_OBJECT_HEADER_BYTES, 1: 0}


async def test_stranger_among_the_objects_is_refused():
    chunks = World().chunks.stored
    await chunks.put(f"{ledger_prefix(CONTAINER, 0)}stranger", [b"x"])
    with pytest.raises(CorruptError, match="has no name of a log's object"):
        await log_object_chain._list_ledger(chunks, CONTAINER, 0)


class Storage:
    """Each read fails with the next of `errors`, then succeeds."""

    def __init__(self, *errors: HeadraceError) -> None:
        self.errors = list(errors)
        self.reads: list[tuple[str, int, int]] = []

    async def read(self, name: str, position: int, length: int) -> bytes:
        self.reads.append((name, position, length))
        if self.errors:
            raise self.errors.pop(0)
        return b"object"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(log_object_chain, "asyncio", _Asyncio(sleep))
    return found


class _Asyncio:
    """`asyncio` with another `sleep`."""

    def __init__(self, sleep: object) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)


ONE = LogObject(2, 5, 0, 1, 100, 0)


def reader(storage: Storage) -> LogObjectReader:
    return LogObjectReader(cast("ChunkStorage", storage), CONTAINER)


@pytest.mark.parametrize("kind", [ThrottledError, UnavailableError])
async def test_object_is_fetched_until_the_last_attempt(kind: type[HeadraceError], pauses: list[float]):
    storage = Storage(*(kind("no answer") for _ in range(ATTEMPTS_MAX - 1)))
    assert await reader(storage).fetch(ONE) == b"object"
    assert storage.reads == [(log_object_name(CONTAINER, 2, 5), 0, 100)] * ATTEMPTS_MAX
    assert pauses == [doubled_pause(attempt, RETRY_FIRST_S, RETRY_MOST_S) for attempt in range(1, ATTEMPTS_MAX)]


async def test_object_that_cannot_be_fetched_fails_the_recovery(pauses: list[float]):
    storage = Storage(*(UnavailableError("no answer") for _ in range(ATTEMPTS_MAX + 1)))
    with pytest.raises(UnavailableError):
        await reader(storage).fetch(ONE)
    assert (len(storage.reads), len(pauses)) == (ATTEMPTS_MAX, ATTEMPTS_MAX - 1)


async def test_object_that_has_gone_is_not_asked_for_again(pauses: list[float]):
    storage = Storage(NotFoundError("no object"))
    with pytest.raises(CorruptError, match="does not exist any more"):
        await reader(storage).fetch(ONE)
    assert (len(storage.reads), pauses) == (1, [])


@pytest.mark.parametrize(
    ("objects", "object_bytes", "may"),
    [
        (0, 10 * READ_AHEAD_BYTES, True),
        (1, READ_AHEAD_BYTES - 1, True),
        (1, READ_AHEAD_BYTES, False),
        (READ_AHEAD_OBJECTS - 1, 0, True),
        (READ_AHEAD_OBJECTS, 0, False),
    ],
)
def test_read_ahead_is_bounded(objects: int, object_bytes: int, may: bool):
    assert LogObjectReader._may_fetch(objects, object_bytes) is may


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


class HeldReads:
    """Reads without an answer, until the first one finds no object."""

    def __init__(self) -> None:
        self.reading: list[str] = []
        self.cancelled = 0
        self.first_ends = asyncio.Event()

    async def read(self, name: str, _position: int, _length: int) -> bytes:
        self.reading.append(name)
        try:
            await (self.first_ends.wait() if name == self.reading[0] else asyncio.Event().wait())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise NotFoundError("no object")


async def test_objects_are_fetched_ahead_until_one_is_missing():
    """Then nothing is fetched any more."""
    storage = HeldReads()
    wanted = [LogObject(0, number, number, number + 1, 100, 0) for number in range(READ_AHEAD_OBJECTS + 2)]
    entries = LogObjectReader(cast("ChunkStorage", storage), CONTAINER).entries(wanted, 0)
    reading = asyncio.ensure_future(asyncio.to_thread(list, entries))
    await until(lambda: len(storage.reading) >= READ_AHEAD_OBJECTS)
    (first, *others) = storage.reading
    assert first == log_object_name(CONTAINER, 0, 0)
    assert len(others) == READ_AHEAD_OBJECTS - 1
    storage.first_ends.set()
    with pytest.raises(CorruptError, match=f"object {first}"):
        await reading
    await until(lambda: storage.cancelled == len(others))


async def test_entries_before_the_first_one_are_left_out():
    chunks = World().chunks.stored
    await put(chunks, 0, 0, 0, 3)
    (stored,) = await chunks.list(ledger_prefix(CONTAINER, 0))
    entries = LogObjectReader(chunks, CONTAINER).entries([LogObject(0, 0, 0, 3, stored.length, 0)], 1)
    assert [each.entry for each in await asyncio.to_thread(list, entries)] == [1, 2]
