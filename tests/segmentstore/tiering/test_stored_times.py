"""Searching a segment for a time: in memory, over many runs of tier 2, in the blocks beside them, and without those."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tier2_segments import Tier2

from headrace.codec.time_blocks import TIME_BLOCK_BYTES_MAX, decode_time_block
from headrace.model.chunks import ChunkRun, RunTimes
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.time_points import TimePoint, TimePoints
from headrace.ports.metadata_store import Delete
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.segment import AcceptedState, Segment
from headrace.segmentstore.tiering import stored_times
from headrace.segmentstore.tiering.stored_times import BYTES_PER_TIME_POINT_MIN, points_known, points_of_all, with_times

pytestmark = pytest.mark.anyio


async def test_search_over_ten_thousand_runs_is_a_bisection():
    tier2 = Tier2()
    runs = [ChunkRun(100 * n, 100, f"o-{n}", 0, RunTimes(1000 * n + 1, 1000 * n + 900)) for n in range(10_000)]
    runs[7_000] = await tier2.store_block(
        runs[7_000], [(700_000, 7_000_001, 7_000_001), (700_040, 7_000_800, 7_000_900)]
    )
    tier2.store(runs)
    for ordering, offset, gets in [
        (1, 0, 0),
        (901, 100, 0),  # between two runs
        (5_000_001, 500_000, 0),
        (7_000_001, 700_000, 0),
        (7_000_002, 700_040, 1),
        (7_000_700, 700_040, 1),
        (9_999_900, 999_900, 1),
        (9_999_901, 1_000_000, 1),  # all are older
    ]:
        tier2.queries = 0
        assert await tier2.offset_from(ordering) == offset
        assert 13 <= tier2.queries <= 14  # 2 to the power of 13 is the last one below 10,000
        assert tier2.gets == gets  # and a block is remembered


class History(NamedTuple):
    """Appends as (offset, number), several of which may be of one frame, and what is known of them.

    `cuts` are the first appends of the runs in tier 2 and of what it lacks, and `known` is what tier 2 knows of each
    run. Memory has the times from the append `memory` on; None: it has none.
    """

    appends: list[tuple[int, int]]
    cuts: list[int]
    known: list[str]
    memory: int | None
    length: int

    def append_at(self, offset: int) -> int:
        return bisect_right(self.appends, offset, key=lambda append: append[0]) - 1

    def run_of(self, append: int) -> int | None:
        """The run with an append; None if tier 2 lacks it."""
        run = bisect_right(self.cuts, append) - 1
        return run if run < len(self.cuts) - 1 else None

    def has_in_memory(self, append: int) -> bool:
        return self.memory is not None and append >= self.memory


@st.composite
def histories(draw: st.DrawFn) -> History:
    offset, ordering, appends = 0, 1000, list[tuple[int, int]]()
    for length, step in draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=40)):
        ordering += step
        appends.append((offset, ordering))
        offset += length
    cuts = sorted(draw(st.sets(st.integers(0, len(appends)), max_size=8)) | {0})
    known = draw(st.lists(st.sampled_from(["block", "run", "damaged", "lost"]), min_size=9, max_size=9))
    old = draw(st.integers(0, 2))
    known[:old] = ["nothing"] * old
    memory = draw(st.none() | st.integers(0, cuts[-1]))
    numbered_from = cuts[min(old, len(cuts) - 1)]  # what has no number was written before any frame had one
    if memory is not None:
        numbered_from = min(numbered_from, memory)
    appends = [(at, number + (index >= numbered_from)) for index, (at, number) in enumerate(appends)]
    return History(appends, cuts, known, memory, offset)


async def stored(history: History) -> tuple[Tier2, list[ChunkRun]]:
    """A segment with this history, and its runs."""
    appends, cuts, known, memory, length = history
    tier2 = Tier2()
    ends = [append[0] for append in appends] + [length]
    runs = []
    for knows, first, last in zip(known, cuts, cuts[1:], strict=False):
        points = TimePoints()
        for append in appends[first:last]:
            points.note(*append)
        times = None if knows == "nothing" else RunTimes(points.oldest, points.newest)
        run = ChunkRun(ends[first], ends[last] - ends[first], f"o-{first}", 0, times)
        if knows in ("block", "damaged"):
            run = await tier2.store_block(run, list(points))
        if knows == "damaged":
            await tier2.chunks.delete([run.object_name])
            await tier2.chunks.put(run.object_name, [b"\0" * run.times.block_length])
        if knows == "lost":
            run = replace(run, times=run.times._replace(block_length=9))
        runs.append(run)
    if runs:
        tier2.store(runs)
    segment = tier2.segment
    segment.accepted.length = segment.durable.length = length
    for append in [] if memory is None else appends[memory:]:
        segment.times.note(*append)
    return tier2, runs


@given(histories(), st.data())
async def test_times_of_bytes_are_never_too_new(history: History, data: st.DataObject):
    tier2, _ = await stored(history)
    offset = data.draw(st.integers(0, history.length))
    append = history.append_at(min(offset, history.length - 1))
    run = history.run_of(append) if offset < history.length else None
    found = await tier2.reader.ordering_at(tier2.segment, offset)
    if history.has_in_memory(append) or (run is not None and history.known[run] == "block"):
        assert found == history.appends[append][1]
    elif run is None or history.known[run] == "nothing":
        assert found == 0
    else:
        assert found == history.appends[history.cuts[run]][1]


@given(histories(), st.data(), st.integers(0, 200))
async def test_no_search_passes_over_what_it_looks_for(history: History, data: st.DataObject, start: int):
    appends, cuts, known, memory, length = history
    tier2, _ = await stored(history)
    segment = tier2.segment
    start = segment.accepted.start_offset = min(start, length)
    ordering = data.draw(st.sampled_from(appends))[1] + data.draw(st.integers(-1, 1))

    index = bisect_left([append[1] for append in appends], ordering)
    exact = max(appends[index][0] if index < len(appends) else length, start)
    found = await tier2.offset_from(ordering)
    assert start <= found <= exact
    run = history.run_of(index)
    if memory is not None and memory < min(index, len(appends)):
        assert found == exact, "memory knows that all before is older"
    elif run is not None and known[run] != "nothing" and appends[cuts[run]][1] < ordering:
        run_start = appends[cuts[run]][0]
        assert found >= min(exact, max(run_start, start)), "all before the run is older"
        if known[run] == "block":
            assert found == exact
    elif run is not None and "nothing" not in known:
        assert found >= min(exact, max(appends[cuts[run]][0], start))
    elif memory is not None and memory < len(appends) and "nothing" not in known:
        assert found == exact, "what tier 2 has is older"


@given(histories(), st.data())
async def test_boundaries_inside_runs_come_from_their_blocks(history: History, data: st.DataObject):
    appends = [(offset, 1_000 + index) for index, (offset, _) in enumerate(history.appends)]
    cuts = sorted({*history.cuts, len(appends)})
    tier2, _ = await stored(History(appends, cuts, ["block"] * 9, None, history.length))
    offset = data.draw(st.integers(0, history.length))
    ends = [append[0] for append in appends] + [history.length]
    assert await tier2.boundary(offset) == min(end for end in ends if end >= offset)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_bytes_without_a_time_are_older_than_all_others(in_memory: bool):
    tier2 = Tier2()
    runs = [
        ChunkRun(0, 100, "a", 0),
        ChunkRun(100, 50, "b", 0, RunTimes(5, 9)),
        ChunkRun(150, 50, "c", 0, RunTimes(11, 12)),
    ]
    tier2.store(runs[:1] if in_memory else runs)
    if in_memory:
        tier2.segment.accepted.length = tier2.segment.durable.length = 200
        tier2.segment.times.note(100, 5)
        tier2.segment.times.note(150, 11)
    assert [await tier2.offset_from(ordering) for ordering in (4, 5, 10, 11)] == [0, 100, 150, 150]


async def test_memory_has_the_answer_only_behind_its_first_point():
    tier2 = Tier2()
    tier2.store([ChunkRun(0, 50, "a", 0), ChunkRun(50, 50, "b", 0, RunTimes(5, 5))])
    tier2.segment.times.note(100, 5)  # of the frame whose first bytes tier 2 has
    tier2.segment.times.note(101, 8)
    tier2.segment.accepted.length = tier2.segment.durable.length = 150
    assert [await tier2.offset_from(ordering) for ordering in (5, 6, 8, 9)] == [50, 101, 101, 150]
    asked = tier2.queries
    assert await tier2.offset_from(7) == 101
    assert tier2.queries == asked


@pytest.mark.parametrize(("block_bytes", "gets"), [(0, 0), (TIME_BLOCK_BYTES_MAX, 1), (TIME_BLOCK_BYTES_MAX + 1, 0)])
async def test_only_blocks_of_a_possible_length_are_read(block_bytes: int, gets: int):
    tier2 = Tier2()
    tier2.store([ChunkRun(0, 50, "a", 0, RunTimes(5, 9, 0, block_bytes))])
    assert await tier2.reader.ordering_at(tier2.segment, 20) == 5
    assert tier2.gets == gets


async def test_untiered_bytes_without_a_time_are_not_skipped():
    tier2 = Tier2()
    tier2.store([ChunkRun(0, 100, "a", 0, RunTimes(1, 3))])
    assert await tier2.offset_from(4) == 100
    tier2.segment.accepted.length = tier2.segment.durable.length = 101
    assert await tier2.offset_from(4) == 0
    assert await tier2.offset_from(2) == 0
    tier2.segment.times.note(101, 5)
    tier2.segment.accepted.length = tier2.segment.durable.length = 150
    assert [await tier2.offset_from(ordering) for ordering in (4, 5, 6)] == [0, 101, 150]


@pytest.mark.parametrize(
    ("before", "first", "start", "boundary"),
    [
        ((4, 6), 6, 0, 101),  # a piece of the frame in the run before it: perhaps of a large event
        ((4, 7), 6, 0, 101),
        ((4, 5), 6, 0, 100),
        (None, 6, 0, 100),
        ((4, 6), None, 0, 100),
        ((4, 6), 6, 99, 101),
        ((4, 6), 6, 100, 100),  # the run before it was truncated away
    ],
)
async def test_a_run_begins_an_append_if_it_is_newer(
    before: tuple[int, int] | None, first: int | None, start: int, boundary: int
):
    tier2 = Tier2()
    runs = [
        ChunkRun(0, 99, "a", 0, RunTimes(1, 3)),
        ChunkRun(99, 1, "b", 0, None if before is None else RunTimes(*before)),
        ChunkRun(100, 50, "c", 0, None if first is None else RunTimes(first, 9)),
    ]
    if first is not None:
        runs[2] = await tier2.store_block(runs[2], [(100, first, first), (101, 8, 8), (120, 9, 9)])
    tier2.store(runs)
    tier2.segment.accepted.start_offset = start
    assert await tier2.boundary(100) == boundary
    assert tier2.gets == (boundary > 100)
    assert tier2.queries == (1 if start == 100 else 2)


async def test_a_walk_to_a_boundary_asks_for_each_run_once():
    tier2 = Tier2()
    tier2.store([ChunkRun(100 * n, 100, f"o-{n}", 0, RunTimes(n, n + 1)) for n in range(1, 4)])
    assert await tier2.boundary(150) == 400
    assert (tier2.queries, tier2.gets) == (3, 0)


async def test_a_block_that_ends_too_early_is_not_believed():
    tier2 = Tier2()
    run = ChunkRun(100, 50, "o", 0, RunTimes(10, 50))
    tier2.store([await tier2.store_block(run, [(100, 10, 10), (120, 40, 40)])])
    tier2.segment.accepted.start_offset = 100
    assert await tier2.offset_from(45) == 100


async def test_blocks_unused_for_longest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_times, "REMEMBERED_BLOCKS_MAX", 2)
    tier2 = Tier2()
    runs = [ChunkRun(100 * n, 100, f"o-{n}", 0, RunTimes(10 * n, 10 * n + 1)) for n in range(3)]
    points = [
        [(run.offset, run.times.first, run.times.first), (run.offset + 1, run.times.last, run.times.last)]
        for run in runs
    ]
    tier2.store([await tier2.store_block(*each) for each in zip(runs, points, strict=True)])
    asked = list[bool]()
    for index in (0, 1, 0, 1, 0, 2, 0, 1):
        before = tier2.gets
        assert await tier2.reader.ordering_at(tier2.segment, 100 * index + 50) == 10 * index + 1
        asked.append(tier2.gets > before)
    assert asked == [True, True, False, False, False, True, False, True]


async def test_search_fails_for_a_missing_run_or_removed_segment():
    tier2 = Tier2()
    runs = [ChunkRun(100 * n, 100, f"o-{n}", 0, RunTimes(10 * n + 1, 10 * n + 9)) for n in range(3)]
    tier2.store(runs)
    tier2.metadata.write(Delete(tier2.key(runs[1]), version=None))
    with pytest.raises(CorruptError, match="no run of"):
        await tier2.offset_from(15)
    for offset in (100, 110):
        with pytest.raises(CorruptError, match="no run of"):
            await tier2.boundary(offset)
    tier2.segment.accepted.removed = True
    with pytest.raises(NotFoundError):
        await tier2.offset_from(15)


@pytest.mark.parametrize("of_boundary", [True, False])
async def test_a_truncation_meanwhile_moves_the_answer(of_boundary: bool):
    tier2 = Tier2()
    runs = [ChunkRun(100 * n, 100, f"o-{n}", 0, RunTimes(10 * n + 1, 10 * n + 9)) for n in range(8)]
    tier2.store(runs)
    asked = tier2.query

    def truncating(*args, **fields):
        tier2.segment.accepted.start_offset = 750
        for run in runs[:7]:
            tier2.metadata.write(Delete(tier2.key(run), version=None))
        tier2.query = asked
        return asked(*args, **fields)

    tier2.query = truncating
    assert await (tier2.boundary(310) if of_boundary else tier2.offset_from(5)) == 750


@given(
    st.lists(st.tuples(st.integers(1, 2_000), st.integers(1, 500)), min_size=2, max_size=60),
    st.integers(1, 12),
    st.data(),
)
def test_joined_runs_keep_their_times(steps, points_max, data):
    """Also where a point that stands for many frames reaches over the border of two runs."""
    segment = Segment(1, "s", BlockPool(2 << 20), AcceptedState({}, 0))
    starts, numbers, offset, number = [], [], 0, 1_000
    for length, later in steps:
        number += later
        segment.times.note(offset, number)
        starts.append(offset)
        numbers.append(number)
        offset += length
    segment.times.thin_out(points_max)
    borders = sorted({0, offset, *data.draw(st.lists(st.sampled_from(starts), max_size=6))})
    runs = [ChunkRun(begin, end - begin, "object", begin, RunTimes(1, 2)) for begin, end in itertools.pairwise(borders)]

    run, block = with_times(ChunkRun(0, offset, "object", 0), points_of_all(segment, runs), 0)

    assert run.times is not None
    assert run.times.first <= numbers[0]
    assert run.times.last >= numbers[-1]
    if block:
        kept = decode_time_block(block, 0, offset, run.times.first)
        for start, exact in zip(starts, numbers, strict=True):
            assert kept.ordering_at(start) <= exact
            found = kept.find(exact)
            assert found is not None
            assert found.offset <= start


def segment_with(*points: TimePoint) -> Segment:
    segment = Segment(1, "s", BlockPool(2 << 20), AcceptedState({}, 0))
    for point in points:
        segment.times.add(*point)
    return segment


@pytest.mark.parametrize(
    ("points", "times", "known"),
    [
        ((), None, []),
        ((), RunTimes(5, 9), [TimePoint(10, 5, 9)]),
        ((TimePoint(11, 7, 7),), RunTimes(5, 9), [TimePoint(10, 5, 9)]),
        ((TimePoint(11, 7, 7),), None, []),
        ((TimePoint(10, 6, 6), TimePoint(15, 8, 8)), RunTimes(5, 9), [TimePoint(10, 6, 6), TimePoint(15, 8, 8)]),
        ((TimePoint(0, 6, 6), TimePoint(20, 8, 8)), None, [TimePoint(10, 6, 6)]),
    ],
    ids=["nothing", "its record", "memory of later bytes", "later bytes only", "memory", "memory of earlier bytes"],
)
def test_memory_knows_times_better_than_a_record(
    points: tuple[TimePoint, ...], times: RunTimes | None, known: list[TimePoint]
):
    segment, run = segment_with(*points), ChunkRun(10, 10, "object", 0, times)
    assert points_known(segment, run) == known
    assert points_of_all(segment, [run]) == known


@pytest.mark.parametrize(
    ("second", "joined"),
    [
        (RunTimes(8, 12), [TimePoint(0, 5, 12)]),
        (RunTimes(6, 8), [TimePoint(0, 5, 9)]),
        (RunTimes(9, 12), [TimePoint(0, 5, 9), TimePoint(10, 9, 12)]),
        (RunTimes(10, 12), [TimePoint(0, 5, 9), TimePoint(10, 10, 12)]),
    ],
)
def test_points_that_share_times_are_joined(second: RunTimes, joined: list[TimePoint]):
    runs = [ChunkRun(0, 10, "a", 0, RunTimes(5, 9)), ChunkRun(10, 10, "b", 0, second)]
    assert points_of_all(segment_with(), runs) == joined


def test_run_has_a_block_only_for_several_points():
    run = ChunkRun(100, 2 * BYTES_PER_TIME_POINT_MIN, "object", 7)
    first, second, third = (TimePoint(100 * number, 10 * number, 10 * number + 5) for number in (1, 2, 3))
    assert with_times(run, [], 50) == (run, b"")
    assert with_times(run, [first], 50) == (replace(run, times=RunTimes(10, 15)), b"")
    timed, block = with_times(run, [first, second], 50)
    assert timed == replace(run, times=RunTimes(10, 25, 50, len(block)))
    assert list(decode_time_block(block, run.offset, run.length, 10)) == [first, second]
    short = replace(run, length=BYTES_PER_TIME_POINT_MIN - 1)
    assert with_times(short, [first, second], 50) == (replace(short, times=RunTimes(10, 25)), b"")
    assert with_times(short, [first, second, third], 50) == (replace(short, times=RunTimes(10, 35)), b"")


def test_block_has_no_more_points_than_its_run_has_room_for():
    points = [TimePoint(100 + number, number + 1, number + 1) for number in range(40)]
    for count in (40, 20):
        run = ChunkRun(100, count * BYTES_PER_TIME_POINT_MIN, "object", 7)
        _, block = with_times(run, points, 50)
        kept = list(decode_time_block(block, run.offset, run.length, 1))
        assert kept == points if count == 40 else 1 < len(kept) <= count
