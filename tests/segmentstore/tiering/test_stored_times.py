"""Searching a segment for a time: in memory, over many runs of tier 2, in the blocks beside them, and without those."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.codec.time_blocks import decode_time_block, encode_time_block
from headrace.model.chunks import ChunkRun, RunTimes, chunk_body, chunk_partition, chunk_sort
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.time_points import TimePoint, TimePoints
from headrace.ports.metadata_store import Create, Delete, Key
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.segment import AcceptedState, Segment
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.range_cache import RangeCache
from headrace.segmentstore.tiering.storage_reader import StorageReader
from headrace.segmentstore.tiering.stored_times import BYTES_PER_TIME_POINT_MIN, points_known, points_of_all, with_times

pytestmark = pytest.mark.anyio

SEGMENT = "s/t/0.#epoch.0"


class Tier2:
    """A segment in tier 2, put there run by run, and what was asked for."""

    def __init__(self) -> None:
        self.metadata, self.chunks = MemoryMetadataStore(TornReads(0)), MemoryChunkStorage()
        self.queries, self.gets = 0, 0
        self.segment = Segment(1, SEGMENT, BlockPool(1 << 20, 1 << 16), AcceptedState({}, 0))
        self.reader = StorageReader(ChunkDirectory(self, 0, 0, ManualClock()), self, RangeCache(self, 1 << 20))

    def query(self, *args, **fields):
        self.queries += 1
        return self.metadata.query(*args, **fields)

    async def read(self, name, position, length):
        self.gets += 1
        return await self.chunks.read(name, position, length)

    def store(self, runs):
        for first in range(0, len(runs), 50):
            page = runs[first : first + 50]
            self.metadata.write(*(Create(self.key(run), chunk_body(run)) for run in page))
        self.segment.accepted.length = self.segment.durable.length = self.segment.tiered.length = runs[-1].end

    def key(self, run):
        return Key(chunk_partition(SEGMENT), chunk_sort(run.offset))

    async def store_block(self, run, points):
        """The run with its block, which is an object of its own here."""
        block = encode_time_block(TimePoints(points), run.offset)
        await self.chunks.put(run.object_name, [block])
        return replace(run, times=run.times._replace(block_length=len(block)))

    async def offset_from(self, ordering):
        return await self.reader.offset_from(self.segment, ordering)

    async def boundary(self, offset):
        return await self.reader.append_boundary(self.segment, offset)


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


@st.composite
def histories(draw):
    """Appends as (offset, number), cuts of them into runs with what tier 2 knows of each, and where memory begins."""
    offset, ordering, appends = 0, 1000, []
    for length, step in draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=40)):
        ordering += step
        appends.append((offset, ordering))
        offset += length
    cuts = sorted(draw(st.sets(st.integers(0, len(appends)), max_size=8)) | {0})
    known = draw(st.lists(st.sampled_from(["block", "run", "damaged", "lost"]), min_size=9, max_size=9))
    old = draw(st.integers(0, 2))
    known[:old] = ["nothing"] * old
    return appends, cuts, known, offset


async def stored(history):
    """A segment with this history, and its runs."""
    appends, cuts, known, length = history
    tier2 = Tier2()
    ends = [append[0] for append in appends] + [length]
    runs = []
    for knows, first, last in zip(known, cuts, cuts[1:], strict=False):
        points = [(*append, append[1]) for append in appends[first:last]]
        times = None if knows == "nothing" else RunTimes(points[0][1], points[-1][1])
        run = ChunkRun(ends[first], ends[last] - ends[first], f"o-{first}", 0, times)
        if knows in ("block", "damaged"):
            run = await tier2.store_block(run, points)
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
    for append in appends[cuts[-1] :]:
        segment.times.note(*append)
    return tier2, runs


@given(histories(), st.data())
async def test_times_of_bytes_are_never_too_new(history, data):
    appends, cuts, known, length = history
    tier2, _ = await stored(history)
    offset = data.draw(st.integers(0, length - 1))
    exact = max(append for append in appends if append[0] <= offset)[1]
    found = await tier2.reader.ordering_at(tier2.segment, offset)
    index = appends.index(max(append for append in appends if append[0] <= offset))
    run = max((number for number, cut in enumerate(cuts) if cut <= index), default=0)
    if run == len(cuts) - 1 or known[run] == "block":
        assert found == exact  # in memory, or with a block
    elif known[run] == "nothing":
        assert found == 0
    else:
        assert found == appends[cuts[run]][1]


@given(histories(), st.integers(990, 2500), st.integers(0, 500))
async def test_no_search_passes_over_what_it_looks_for(history, ordering, start):
    appends, _, known, length = history
    tier2, runs = await stored(history)
    segment = tier2.segment
    segment.accepted.start_offset = min(start, length)

    index = bisect_left([append[1] for append in appends], ordering)
    exact = max(appends[index][0] if index < len(appends) else length, segment.accepted.start_offset)
    found = await tier2.offset_from(ordering)
    assert segment.accepted.start_offset <= found <= exact
    if set(known) <= {"block"}:
        assert found == exact
    elif "nothing" not in known:
        run_start = max((run.offset for run in runs if run.offset <= exact), default=0)
        assert found >= min(exact, max(run_start, segment.accepted.start_offset))


@given(histories(), st.data())
async def test_boundaries_inside_runs_come_from_their_blocks(history, data):
    appends, cuts, _, length = history
    tier2 = Tier2()
    ends = [append[0] for append in appends] + [length]
    runs = []
    for first, last in zip([*cuts, len(appends)], [*cuts[1:], len(appends)], strict=False):
        points = [(*append, append[1]) for append in appends[first:last]]
        if points:
            run = ChunkRun(
                ends[first], ends[last] - ends[first], f"o-{first}", 0, RunTimes(points[0][1], points[-1][1])
            )
            runs.append(await tier2.store_block(run, points))
    tier2.store(runs)
    offset = data.draw(st.integers(0, length))
    assert await tier2.boundary(offset) == min(end for end in ends if end >= offset)


async def test_search_fails_for_a_missing_run_or_removed_segment():
    tier2 = Tier2()
    runs = [ChunkRun(100 * n, 100, f"o-{n}", 0, RunTimes(10 * n + 1, 10 * n + 9)) for n in range(3)]
    tier2.store(runs)
    tier2.metadata.write(Delete(tier2.key(runs[1]), version=None))
    with pytest.raises(CorruptError, match="no run of"):
        await tier2.offset_from(15)
    with pytest.raises(CorruptError, match="no run of"):
        await tier2.boundary(110)
    tier2.segment.accepted.removed = True
    with pytest.raises(NotFoundError):
        await tier2.offset_from(15)


async def test_a_truncation_meanwhile_moves_the_answer():
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
    assert await tier2.offset_from(5) == 750


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
    assert with_times(short, [first, second, third], 50) == (replace(short, times=RunTimes(10, 35)), b"")


def test_block_has_no_more_points_than_its_run_has_room_for():
    points = [TimePoint(100 + number, number + 1, number + 1) for number in range(40)]
    for count in (40, 20):
        run = ChunkRun(100, count * BYTES_PER_TIME_POINT_MIN, "object", 7)
        _, block = with_times(run, points, 50)
        kept = list(decode_time_block(block, run.offset, run.length, 1))
        assert kept == points if count == 40 else 1 < len(kept) <= count
