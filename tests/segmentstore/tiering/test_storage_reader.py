"""Reads of bytes that only tier 2 has: what they ask it for, their tokens and times, and what was removed meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tier2_segments import Tier2

from headrace.model.chunks import ChunkRun, RunTimes
from headrace.model.errors import CorruptError, NotFoundError
from headrace.ports.metadata_store import Delete
from headrace.segmentstore.containers.pending_merges import PendingMerge
from headrace.segmentstore.tiering import storage_reader
from headrace.segmentstore.tiering.range_cache import LARGE_READ_BYTES_MIN, PIECE_BYTES, SMALL_PIECE_BYTES
from headrace.segmentstore.tiering.storage_reader import encode_read_token

pytestmark = pytest.mark.anyio

OBJECT = "object"


async def runs_of(tier2: Tier2, count: int, length: int = 100, *, times: RunTimes | None = None) -> list[ChunkRun]:
    """Contiguous runs of one object, each of one byte value."""
    await tier2.chunks.put(OBJECT, [bytes([number % 256]) * length for number in range(count)])
    return [ChunkRun(number * length, length, OBJECT, number * length, times) for number in range(count)]


@pytest.mark.parametrize(
    ("length", "reads_on", "asked"),
    [
        (LARGE_READ_BYTES_MIN - 1, None, SMALL_PIECE_BYTES),
        (LARGE_READ_BYTES_MIN, None, PIECE_BYTES),
        (100, False, SMALL_PIECE_BYTES),
        (100, True, PIECE_BYTES),
    ],
)
async def test_large_pieces_are_for_large_or_further_reads(length: int, reads_on: bool | None, asked: int):
    tier2 = Tier2(64 << 20)
    tier2.store(await runs_of(tier2, 1, 2 * PIECE_BYTES))
    ahead = None if reads_on is None else tier2.reader.read_ahead()
    if ahead is not None and reads_on:
        ahead.answered(0, ())
    stored = await tier2.reader.read(tier2.segment, 0, length, ahead=ahead)
    assert tier2.ranges[0] == (OBJECT, 0, asked)
    assert len(stored.data) == min(length, asked)


@pytest.mark.parametrize(("length", "token"), [(99, (99, 0)), (100, (100, 100)), (101, (100, 100))])
async def test_a_token_names_the_run_of_the_next_byte(length: int, token: tuple[int, int]):
    tier2 = Tier2()
    tier2.store(await runs_of(tier2, 2))
    stored = await tier2.reader.read(tier2.segment, 0, length)
    assert (len(stored.data), stored.token) == (token[0], encode_read_token(*token))


@pytest.mark.parametrize(
    ("times", "memory", "ordering"), [(None, 0, 0), (RunTimes(7, 9), 0, 7), (RunTimes(7, 9), 8, 8)]
)
async def test_a_read_has_the_time_that_is_known_best(times: RunTimes | None, memory: int, ordering: int):
    tier2 = Tier2()
    tier2.store(await runs_of(tier2, 1, times=times))
    if memory:
        tier2.segment.times.note(0, memory)
    assert (await tier2.reader.read(tier2.segment, 50, 10)).ordering == ordering


async def test_a_run_behind_thousands_is_found_at_once():
    tier2 = Tier2()
    tier2.store(await runs_of(tier2, 1_000))
    for offset, queries in [(99_950, 2), (99_900, 0), (50_000, 2), (50_199, 0)]:
        tier2.queries = 0
        found = await tier2.reader.read(tier2.segment, offset, 1)
        assert (bytes(found.data), tier2.queries) == (bytes([offset // 100 % 256]), queries)


async def test_windows_of_unused_segments_are_forgotten_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage_reader, "REMEMBERED_WINDOWS_MAX", 2)
    tier2 = Tier2()
    segments = [tier2.another(number, f"s/t/{number}.#epoch.0") for number in range(2, 5)]
    runs = await runs_of(tier2, 1)
    for segment in segments:
        tier2.store(runs, segment)
    asked = list[bool]()
    for index in (0, 1, 0, 1, 0, 2, 0, 1):
        before = tier2.queries
        await tier2.reader.read(segments[index], 0, 10)
        asked.append(tier2.queries > before)
    assert asked == [True, True, False, False, False, True, False, True]


async def test_a_move_that_memory_does_not_know_is_followed():
    """The directory has the bytes under the name of the target already."""
    tier2 = Tier2()
    tier2.store(await runs_of(tier2, 2))
    source = tier2.another(2, "s/t/1.#epoch.0")
    source.accepted.length = 100
    tier2.segment.add_merge(PendingMerge(100, 100, source, 5, 1))
    found = await tier2.reader.read(tier2.segment, 150, 100)
    assert (bytes(found.data), found.token) == (b"\1" * 50, encode_read_token(200, 200))


def remove(tier2: Tier2) -> None:
    tier2.segment.accepted.removed = True


def truncate(tier2: Tier2) -> None:
    tier2.segment.accepted.start_offset = 101


def truncate_before(tier2: Tier2) -> None:
    tier2.segment.accepted.start_offset = 100


@pytest.mark.parametrize(
    ("meanwhile", "error"), [(remove, NotFoundError), (truncate, NotFoundError), (truncate_before, CorruptError)]
)
async def test_a_missing_run_is_an_error_unless_it_was_removed(
    meanwhile: Callable[[Tier2], None], error: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    tier2 = Tier2()
    runs = await runs_of(tier2, 3)
    tier2.store(runs)
    tier2.metadata.write(Delete(tier2.key(runs[1]), version=None))
    honest = tier2.query

    def later(*args, **fields):  # type: ignore[no-untyped-def]
        meanwhile(tier2)
        return honest(*args, **fields)

    monkeypatch.setattr(tier2, "query", later)
    with pytest.raises(error):
        await tier2.reader.read(tier2.segment, 100, 10)


async def test_memory_is_asked_for_boundaries_before_tier_2():
    tier2 = Tier2()
    times = [RunTimes(1, 9), RunTimes(11, 19)]
    tier2.store([ChunkRun(100 * number, 100, OBJECT, 0, each) for number, each in enumerate(times)])
    for offset, ordering in [(50, 5), (80, 8), (100, 11)]:
        tier2.segment.times.note(offset, ordering)
    for offset, boundary, asks in [
        (10, 50, True),
        (50, 50, False),
        (51, 80, False),
        (100, 100, False),
        (200, 200, False),
    ]:
        tier2.queries = 0
        assert await tier2.boundary(offset) == boundary
        assert (tier2.queries > 0) == asks, offset
