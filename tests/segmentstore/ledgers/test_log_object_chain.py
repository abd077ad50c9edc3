"""The objects of a log: chains with holes are refused, and objects are fetched for a while before that fails."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from ledger_worlds import Reports
from object_worlds import CONTAINER, World

from headrace.codec.log_objects import (
    LOG_OBJECT_BYTES_MAX,
    LOG_OBJECT_HEADER_BYTES,
    LogObjectHeader,
    ledger_prefix,
    log_object_name,
)
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError, ThrottledError, UnavailableError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.segmentstore.log.objects import log_object_chain
from headrace.segmentstore.log.objects.log_object_chain import (
    ATTEMPTS_MAX,
    READ_AHEAD_BYTES,
    READ_AHEAD_OBJECTS,
    LogObject,
    LogObjectReader,
    _check_complete,
    _check_length,
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


@pytest.mark.parametrize("length", [LOG_OBJECT_HEADER_BYTES + 49, LOG_OBJECT_BYTES_MAX + 1])
def test_object_of_an_impossible_length_is_refused(length: int):
    header = LogObjectHeader(CONTAINER, 0, 0, 0, 0, 0, 1, 50, 0, 1)
    with pytest.raises(CorruptError, match=f"has {length} bytes, its header says at least"):
        _check_length(CONTAINER, 0, header, length)
    for possible in (LOG_OBJECT_HEADER_BYTES + 50, LOG_OBJECT_BYTES_MAX):
        _check_length(CONTAINER, 0, header, possible)


async def test_object_that_is_too_short_for_a_header_is_refused():
    chunks = World().chunks.stored
    await chunks.put(log_object_name(CONTAINER, 0, 0), [bytes(LOG_OBJECT_HEADER_BYTES - 1)])
    with pytest.raises(CorruptError, match=f"has {LOG_OBJECT_HEADER_BYTES - 1} bytes, too few for a header"):
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
    assert len(pauses) == ATTEMPTS_MAX - 1
    assert pauses == sorted(pauses)


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
