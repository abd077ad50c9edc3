"""Small runs become large ones: which are chosen, what it costs, when it keeps still, and that no byte is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from held_disk import HeldDisk
from hypothesis import given
from hypothesis import strategies as st
from object_counts import assert_counts_agree, counts_of
from store_world import World

from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.time_blocks import decode_time_block
from headrace.model.chunks import ChunkRun, chunk_partition, chunk_run
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, WRITES_PER_TRANSACTION_MAX
from headrace.segmentstore.tiering import compactor as compactor_module
from headrace.segmentstore.tiering import stored_times
from headrace.segmentstore.tiering.chunk_directory import REPLACED_WRITES_MAX, fitting
from headrace.segmentstore.tiering.compactor import (
    COMPACTED_CHUNK_BYTES_MIN,
    HINTED_SEGMENTS_MAX,
    READS_AT_ONCE_MAX,
    RUNS_LOOKED_AT,
    CompactionBudget,
    SmallRuns,
    runs_to_merge,
)

pytestmark = pytest.mark.anyio

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
WRITER = 5
RUNS_MIN = 32


# Which runs


def run_list(lengths, objects=None):
    runs, offset = [], 0
    for number, length in enumerate(lengths):
        runs.append(ChunkRun(offset, length, f"object-{objects[number] if objects else number}", 0))
        offset += length
    return runs


def test_few_small_runs_are_left_alone():
    assert not runs_to_merge(run_list([100] * (RUNS_MIN - 1)), RUNS_MIN)
    assert not runs_to_merge([], RUNS_MIN)
    assert not runs_to_merge(run_list([COMPACTED_CHUNK_BYTES_MIN] * 100), RUNS_MIN)


def test_many_runs_of_about_the_same_size_become_one():
    runs = run_list([100] * RUNS_MIN)
    assert list(runs_to_merge(runs, RUNS_MIN)) == runs
    assert list(runs_to_merge(run_list([100_000, *[100] * RUNS_MIN]), RUNS_MIN)) == run_list([100_000, *[100] * 32])[1:]


def test_what_makes_a_whole_chunk_becomes_one_and_no_more():
    mib = 1 << 20
    chosen = runs_to_merge(run_list([mib] * 20), RUNS_MIN)
    assert sum(each.length for each in chosen) == COMPACTED_CHUNK_BYTES_MIN
    assert chosen[0].offset == 0


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_chunk_has_no_run_that_it_does_not_need(count: int):
    runs = run_list([COMPACTED_CHUNK_BYTES_MIN // 2] * count)
    assert list(runs_to_merge(runs, RUNS_MIN)) == runs[:2]


def test_runs_of_many_objects_are_merged_as_far_as_they_fit():
    """Each needs a write for its record, and one for the count of its object."""
    runs = run_list([100] * RUNS_LOOKED_AT)
    assert list(runs_to_merge(runs, RUNS_MIN)) == runs[: REPLACED_WRITES_MAX // 2]
    assert not runs_to_merge(runs[:1], 1)


def test_a_gap_or_a_large_run_ends_what_can_be_merged():
    runs = run_list([100] * 70)
    del runs[20]
    assert runs_to_merge(runs, RUNS_MIN)[0] == runs[20]
    large = run_list([100] * 40 + [COMPACTED_CHUNK_BYTES_MIN] + [100] * 40)
    assert runs_to_merge(large, RUNS_MIN)[0] == large[41]


@given(
    st.lists(st.tuples(st.integers(1, 1 << 25), st.integers(0, 5)), max_size=RUNS_LOOKED_AT),
    st.integers(2, 40),
)
def test_what_is_chosen_is_contiguous_small_and_fits(shapes, runs_min):
    runs = run_list([length for length, _ in shapes], [number for _, number in shapes])
    chosen = list(runs_to_merge(runs, runs_min))
    if chosen:
        first = runs.index(chosen[0])
        assert chosen == runs[first : first + len(chosen)]
        assert len(chosen) > 1
        assert fitting(chosen, REPLACED_WRITES_MAX) == len(chosen)
        assert all(run.length < COMPACTED_CHUNK_BYTES_MIN for run in chosen)
        assert sum(each.length for each in chosen) < 2 * COMPACTED_CHUNK_BYTES_MIN


@pytest.mark.parametrize("length", [50, 5_000, 300_000, 2_000_000])
def test_bytes_reach_a_large_chunk_after_few_rewrites(length):
    """Run by run, as flushes come; looked at as often as hints say."""
    runs, offset, written, hints = [], 0, 0, SmallRuns(RUNS_MIN)
    for number in range(3_000):
        runs.append(ChunkRun(offset, length, f"object-{number}", 0))
        offset += length
        hints.note("segment", length)
        while hints.take() is not None:
            chosen = list(hints.choose(runs[-RUNS_LOOKED_AT:]))
            if chosen:
                first = runs.index(chosen[0])
                merged = ChunkRun(chosen[0].offset, sum(each.length for each in chosen), f"merged-{number}-{first}", 0)
                runs[first : first + len(chosen)] = [merged]
                written += merged.length
                hints.look_again("segment")
    assert written <= 4 * offset
    assert len(runs) <= 3 * RUNS_MIN + offset / COMPACTED_CHUNK_BYTES_MIN
    small = sum(each.length for each in runs if each.length < COMPACTED_CHUNK_BYTES_MIN)
    assert small < 3 * COMPACTED_CHUNK_BYTES_MIN


def test_run_of_a_whole_chunk_is_no_small_one():
    half = COMPACTED_CHUNK_BYTES_MIN // 2
    runs = run_list([COMPACTED_CHUNK_BYTES_MIN, half, half])
    assert list(runs_to_merge(runs, RUNS_MIN)) == runs[1:]


def test_runs_of_a_class_are_merged_together():
    """Otherwise the smaller ones would be rewritten once more with the larger ones."""
    runs = run_list([2000] * 40 + [300] * 32, [0] * 72)
    assert list(runs_to_merge(runs, RUNS_MIN)) == runs


def test_larger_runs_wait_for_others_of_their_class():
    """Otherwise every merge would rewrite what an earlier one has made."""
    runs = run_list([300] * 20 + [100] * RUNS_MIN)
    assert list(runs_to_merge(runs, RUNS_MIN)) == runs[20:]


@pytest.mark.parametrize(
    ("lengths", "is_due"),
    [
        ([1] * (RUNS_MIN - 1), False),
        ([1] * RUNS_MIN, True),
        ([COMPACTED_CHUNK_BYTES_MIN - 1], False),
        ([COMPACTED_CHUNK_BYTES_MIN - 1, 1], True),
        ([COMPACTED_CHUNK_BYTES_MIN] * RUNS_MIN, False),
    ],
)
def test_segment_is_looked_at_after_many_or_large_runs(lengths: list[int], is_due: bool):
    hints = SmallRuns(RUNS_MIN)
    for length in lengths:
        assert not len(hints)
        hints.note("segment", length)
    assert hints.take() == ("segment" if is_due else None)


def test_hints_are_bounded():
    hints = SmallRuns(RUNS_MIN)
    for number in range(HINTED_SEGMENTS_MAX + 100):
        hints.note(f"segment {number}", 1)
    assert len(hints._since) == HINTED_SEGMENTS_MAX
    assert not len(hints)


def test_the_budget_lets_one_compact_at_a_time_and_then_rests():
    clock = ManualClock(0)
    budget = CompactionBudget(1000, clock)
    assert budget.take()
    assert not budget.take()
    budget.give_back(2000)
    clock.advance(1999)
    assert not budget.take()
    clock.advance(1)
    assert budget.take()
    budget.give_back(0)
    assert budget.take()
    assert not CompactionBudget(0, clock).take()


# In a store


@pytest.fixture
def world(make_world: type[World]):
    made = make_world(container_count=1, cache_bytes=16 << 20)
    made.chunks = MemoryChunkStorage(made.clock)
    made.limits = replace(made.limits, compacted_runs_min=4)
    return made


def runs_of(world: World, segment):
    page = world.metadata.query(chunk_partition(segment), limit=1000)
    return [chunk_run(record.key.sort, record.body, record.version) for record in page.records]


def packed_objects(world: World):
    """Names of the objects that hold runs; snapshots come and go on their own."""
    return {name for name in world.chunks._objects if "/packed/" in name}


async def small_runs(running, client, segment, count, first=0):
    """Runs of one append each; the bytes of all, which no other segment has."""
    await client.set_up(segment, WRITER)
    data = b""
    for number in range(first, first + count):
        block = b"%d%04d" % (SEGMENTS.index(segment), number) * 20
        await client.append(WRITER, number, block)
        data += block
        await running.flush()
    await running.store.owned[0].container.log.durable()  # what the log may forget is not merged
    return data


async def resting(running):
    """The only container, whose maintenance tasks run when the test says so."""
    owned = running.store.owned[0]
    await owned.maintenance.stop()
    return owned


@pytest.mark.parametrize("cached", [True, False])
async def test_small_runs_become_one_and_every_byte_is_where_it_was(world: World, cached):
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        expected = {}
        for segment in SEGMENTS:
            await client.create(segment)
            expected[segment] = await small_runs(running, client, segment, 4)
            if not cached:
                owned.container.metadata.segments[segment].index.release_all()
        before = {segment: runs_of(world, segment) for segment in SEGMENTS}
        for segment in SEGMENTS:  # whoever read a run knows where it was
            assert await client.read_all(segment) == expected[segment]
        before_merge = packed_objects(world)
        await owned.container.log.durable()  # else the compactor leaves runs alone that the log may not know of
        await owned.maintenance.run_pass()
        assert len(packed_objects(world) - before_merge) == 1
        assert_counts_agree(world.metadata)
        for segment in SEGMENTS:
            (merged,) = runs_of(world, segment)
            assert (merged.offset, merged.end) == (0, before[segment][-1].end)
            assert merged.logged == before[segment][-1].logged, "a store that lost the entry refuses the run"
            assert merged.logged != before[segment][0].logged
            stored = world.chunks.read_now(merged.object_name, merged.position, merged.length)
            assert stored == expected[segment]
            owned.container.metadata.segments[segment].index.release_all()
            assert await client.read_all(segment) == expected[segment]
        world.clock.advance(max(world.limits.object_grace_s, world.limits.sweep_every_s))
        await owned.maintenance.run_pass()
        assert len(counts_of(world.metadata)) == 1
        running.store.read_cache._remembered.clear()  # what is remembered of the old objects is still right
        for segment in SEGMENTS:
            assert await client.read_all(segment) == expected[segment]


async def segments_with_small_runs(running, client, owned):
    """Four runs in each segment, and the compactor."""
    for segment in SEGMENTS:
        await client.create(segment)
        await small_runs(running, client, segment, 4)
    await owned.writer.stop()
    await owned.container.log.durable()
    _, compactor, *_ = owned.maintenance._tasks
    return compactor


async def test_each_merged_run_has_its_own_time_block(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_times, "BYTES_PER_TIME_POINT_MIN", 1)
    async with world.running() as running:
        owned = await resting(running)
        compactor = await segments_with_small_runs(running, await running.connect(), owned)
        assert await compactor.run_pass(), "merged runs may be merged again"
        merged = [run for segment in SEGMENTS for run in runs_of(world, segment)]
        ends = [run.position + run.length for run in merged]
        for run in merged:
            assert run.times is not None
            assert run.times.block_position == max(ends)
            block = world.chunks.read_now(run.object_name, run.times.block_position, run.times.block_length)
            points = decode_time_block(bytes(block), run.offset, run.length, run.times.first)
            assert (len(points), points.oldest, points.newest) == (4, run.times.first, run.times.last)
            ends.append(run.times.block_position + run.times.block_length)
        assert owned.container.metrics.compacted_bytes == max(ends)


@pytest.mark.parametrize(("limit", "value"), [("OBJECT_BYTES_WANTED", 401), ("SEGMENTS_PER_PASS_MAX", 2)])
async def test_one_object_has_a_bounded_number_of_merges(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
):
    monkeypatch.setattr(compactor_module, limit, value)
    async with world.running() as running:
        compactor = await segments_with_small_runs(running, await running.connect(), await resting(running))
        assert await compactor.run_pass()
        assert [len(runs_of(world, segment)) for segment in SEGMENTS] == [1, 1, 4]
        world.clock.advance(60)
        await compactor.run_pass()
        assert [len(runs_of(world, segment)) for segment in SEGMENTS] == [1, 1, 1]


async def test_merged_segment_may_have_more_to_merge(world: World):
    """With older runs its new one may make a larger one."""
    async with world.running() as running:
        compactor = await segments_with_small_runs(running, await running.connect(), await resting(running))
        for segment in SEGMENTS[:2]:
            assert compactor._small_runs.take() == segment
        assert await compactor.run_pass()
        world.clock.advance(60)
        assert not await compactor.run_pass()


async def test_compaction_releases_the_memory_that_it_reads(world: World):
    async with world.running() as running:
        owned = await resting(running)
        compactor = await segments_with_small_runs(running, await running.connect(), owned)
        index = owned.container.metadata.segments[SEGMENTS[0]].index
        blocks = [block for entry in index.entries_from(0, 400) for block in entry.blocks]
        before = [block.references for block in blocks]
        assert blocks
        await compactor.run_pass()
        assert [block.references for block in blocks] == before


async def test_nothing_is_compacted_beyond_the_budget(world: World):
    async with world.running() as running:
        compactor = await segments_with_small_runs(running, await running.connect(), await resting(running))
        compactor._budget.give_back(10**12)
        assert not await compactor.run_pass()
        assert [len(runs_of(world, segment)) for segment in SEGMENTS] == [4, 4, 4]


async def test_restart_drops_hints_but_new_runs_reveal_old_ones(world: World):
    async with world.running() as running:
        client = await running.connect()
        await resting(running)
        await client.create(SEGMENTS[0])
        expected = await small_runs(running, client, SEGMENTS[0], 3)
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 3
        expected += await small_runs(running, client, SEGMENTS[0], 4, first=3)
        await owned.maintenance.run_pass()
        assert [each.length for each in runs_of(world, SEGMENTS[0])] == [len(expected)]


async def test_a_run_that_the_log_may_forget_is_not_merged_yet(world: World, monkeypatch):
    """After a crash it would be written again at its old place, which must not be inside of a larger run by then."""

    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        await small_runs(running, client, SEGMENTS[0], 3)
        await owned.writer.stop()
        await client.append(WRITER, 3, b"last")
        held = HeldDisk(world.disk)
        world.clock.advance(2e9)
        await owned.writer.run_pass()
        _, compactor, *_ = owned.maintenance._tasks
        look, looks = compactor._directory.runs_before, []

        async def noted(*arguments):
            looks.append(arguments)
            return await look(*arguments)

        monkeypatch.setattr(compactor._directory, "runs_before", noted)
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 4
        assert len(looks) == 1, "the next pass looks again"
        held.release()
        await owned.container.log.durable()
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 1


async def test_runs_of_a_segment_with_an_unanswered_write_wait(world: World):
    """A run that enters late must find the one that is in its place, which it would not inside of a larger one."""
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        expected = await small_runs(running, client, SEGMENTS[0], 4)
        with pytest.raises(UnavailableError), owned.container.unanswered.noted(SEGMENTS[0]):
            raise UnavailableError("no answer")
        assert not await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 4
        world.clock.advance(UNANSWERED_WRITE_S)
        await owned.maintenance.run_pass()
        assert [each.length for each in runs_of(world, SEGMENTS[0])] == [len(expected)]


@pytest.mark.parametrize("reason", ["unanswered", "away"])
async def test_all_segments_of_an_attempt_are_looked_at_again(world: World, reason: str):
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        for segment in SEGMENTS:
            await client.create(segment)
            await small_runs(running, client, segment, 4)
        await owned.writer.stop()  # its snapshot would fail without S3 as well, and nothing is compacted then
        if reason == "unanswered":
            with pytest.raises(UnavailableError), owned.container.unanswered.noted(*SEGMENTS):
                raise UnavailableError("no answer")
            assert not await owned.maintenance.run_pass()
            world.clock.advance(UNANSWERED_WRITE_S)
        else:
            honest = world.chunks.put

            async def away(*_):
                raise UnavailableError("S3 is away")

            world.chunks.put = away
            with pytest.raises(UnavailableError):
                await owned.maintenance.run_pass()
            world.chunks.put = honest
            world.clock.advance(60)
        assert [len(runs_of(world, segment)) for segment in SEGMENTS] == [4, 4, 4]
        while await owned.maintenance.run_pass():
            world.clock.advance(60)
        assert [len(runs_of(world, segment)) for segment in SEGMENTS] == [1, 1, 1]


async def test_a_deleted_segment_leaves_the_others_to_be_merged(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        for segment in SEGMENTS:
            await client.create(segment)
            await small_runs(running, client, segment, 4)
        assert isinstance(await client.call(wire.DeleteSegment(9, SEGMENTS[0])), wire.SegmentDeleted)
        await owned.maintenance.run_pass()
        assert [len(runs_of(world, segment)) for segment in SEGMENTS[1:]] == [1, 1]


async def test_missing_bytes_leave_the_others_to_be_merged(world: World, caplog: pytest.LogCaptureFixture):
    """They are an error of their readers. All other data of the container stays available."""
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        await small_runs(running, client, SEGMENTS[0], 4)
        await world.chunks.delete([runs_of(world, SEGMENTS[0])[1].object_name])
        owned.container.metadata.segments[SEGMENTS[0]].index.release_all()
        objects = packed_objects(world)
        await owned.maintenance.run_pass()
        assert f"event=foreign_change container=0 segment={SEGMENTS[0]!r} offset=0 " in caplog.text
        assert packed_objects(world) == objects, "there is nothing to write"
        assert len(runs_of(world, SEGMENTS[0])) == 4
        await small_runs(running, client, SEGMENTS[0], 4, first=4)
        await client.create(SEGMENTS[1])
        await small_runs(running, client, SEGMENTS[1], 4)
        world.clock.advance(60)
        await owned.maintenance.run_pass()
        assert [len(runs_of(world, segment)) for segment in SEGMENTS[:2]] == [8, 1]
        assert owned.container.failure is None


async def test_many_runs_are_read_a_few_at_once_and_joined(world: World):
    world.limits = replace(world.limits, compacted_runs_min=20)
    honest, running_now, most = world.chunks.read, [0], [0]

    async def read(*asked):
        running_now[0] += 1
        most[0] = max(most[0], running_now[0])
        await asyncio.sleep(0)
        try:
            return await honest(*asked)
        finally:
            running_now[0] -= 1

    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        compacted = 0
        for first in (20, 40):
            expected = await small_runs(running, client, SEGMENTS[0], 20, first=first)
            owned.container.metadata.segments[SEGMENTS[0]].index.release_all()
            world.chunks.read = read
            world.clock.advance(60)
            await owned.maintenance.run_pass()
            world.chunks.read = honest
            merged = runs_of(world, SEGMENTS[0])[-1]
            assert stored_now(world, merged)[-len(expected) :] == expected
            assert most == [READS_AT_ONCE_MAX]
            compacted += merged.times.block_position + merged.times.block_length  # the whole object
            assert owned.container.metrics.compacted_bytes == compacted


async def test_it_keeps_still_while_tier_1_or_tier_2_is_in_trouble(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        await small_runs(running, client, SEGMENTS[0], 4)
        reservation = running.store.pool.reserve(running.store.pool.capacity_bytes // 2)
        hoard = running.store.pool.reserve(1 << 20)
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 4
        running.store.pool.release(reservation)
        running.store.pool.release(hoard)
        honest = world.chunks.put

        async def refused(_name, _parts):
            raise UnavailableError("slow down")

        world.chunks.put = refused
        await client.append(WRITER, 4, b"x")
        world.clock.advance(2e9)
        await running.until(lambda: not owned.writer.is_calm)
        assert not await owned.maintenance.run_pass()
        world.chunks.put = honest
        await running.flush()
        await running.until(lambda: owned.writer.is_calm)
        await owned.container.log.durable()  # else a recovery might enter the last run again, so it is not merged yet
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 1


@pytest.mark.parametrize("failing", ["put", "read", "write", "write answer"])
async def test_a_failed_attempt_costs_nothing_and_is_made_again(world: World, failing):
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        expected = await small_runs(running, client, SEGMENTS[0], 4)
        await owned.writer.stop()
        segment = owned.container.metadata.segments[SEGMENTS[0]]
        segment.index.release_all()
        honest_put, honest_read, honest_write = world.chunks.put, world.chunks.read, world.metadata.write

        async def away(*_):
            raise UnavailableError("S3 is away")

        def refused(*writes):
            if failing == "write answer":
                honest_write(*writes)
            raise UnavailableError("the table is away")

        world.chunks.put = away if failing == "put" else honest_put
        world.chunks.read = away if failing == "read" else honest_read
        world.metadata.write = refused if "write" in failing else honest_write
        with pytest.raises(UnavailableError):
            await owned.maintenance.run_pass()
        world.chunks.put, world.chunks.read, world.metadata.write = honest_put, honest_read, honest_write
        world.clock.advance(60)
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 1
        assert_counts_agree(world.metadata)
        assert await client.read_all(SEGMENTS[0]) == expected
        world.clock.advance(max(world.limits.object_grace_s, world.limits.sweep_every_s))
        await owned.maintenance.run_pass()
        assert await client.read_all(SEGMENTS[0]) == expected
        assert len(packed_objects(world)) == 1


def stored_now(world: World, run: ChunkRun) -> bytes:
    return bytes(world.chunks.read_now(run.object_name, run.position, run.length))


async def test_a_run_that_is_partly_in_memory_is_read_whole(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        await client.set_up(SEGMENTS[0], WRITER)
        expected = b""
        for number in range(8):
            expected += (block := b"%05d" % number * 20)
            await client.append(WRITER, number, block)
            if number % 2:
                await running.flush()
        await owned.container.log.durable()
        index = owned.container.metadata.segments[SEGMENTS[0]].index
        (evicted,) = index.entries_from(300, 400)
        owned.container.pool.release(evicted)
        index.forget([evicted])
        assert [each.length for each in runs_of(world, SEGMENTS[0])] == [200] * 4
        await owned.maintenance.run_pass()
        (merged,) = runs_of(world, SEGMENTS[0])
        assert stored_now(world, merged) == expected


async def test_memory_that_is_being_compacted_is_not_used_again(world: World):
    """It is evicted from the segment while the upload still reads it."""
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        expected = await small_runs(running, client, SEGMENTS[0], 4)
        await owned.writer.stop()
        reached, go_on = asyncio.Event(), asyncio.Event()
        honest = world.chunks.put

        async def slow(name, parts):
            reached.set()
            await go_on.wait()
            await honest(name, parts)

        world.chunks.put = slow
        compaction = asyncio.ensure_future(owned.maintenance.run_pass())
        await reached.wait()
        pool, junk = owned.container.pool, b"\xff" * (64 << 10)
        owned.container.metadata.segments[SEGMENTS[0]].index.release_all()
        for _ in range(2):  # the first round fills the block of the appends, the second gets what became free
            taken = []
            while (reservation := pool.reserve(len(junk))) is not None:
                reservation.fill([memoryview(junk)])
                taken.append(reservation)
            assert taken
            for reservation in taken:
                pool.release(reservation)
        go_on.set()
        await compaction
        (merged,) = runs_of(world, SEGMENTS[0])
        assert stored_now(world, merged) == expected


async def test_a_merged_run_of_a_table_says_that_it_is_one(world: World):
    """A store that starts without a volume restores the table by it."""
    table = "scope/table/0.#epoch.0"
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        await client.call(wire.CreateTableSegment(1, table, "", False, 5))
        for number in range(4):
            entry = wire.TableEntry(b"%05d" % number, wire.NO_VERSION, b"value")
            await client.call(wire.UpdateTableEntries(3, table, "", (entry,), -1))
            await running.flush()
        await owned.container.log.durable()
        before = runs_of(world, table)
        assert len(before) > 1
        await owned.maintenance.run_pass()
        (merged,) = runs_of(world, table)
        assert merged.table is not None
        assert {each.table for each in before} == {merged.table}


async def test_compaction_goes_on_after_it_was_stopped(world: World):
    """A hand-over stops it, and may be undone."""
    async with world.running(graceful=False) as running:
        client = await running.connect()
        owned = await resting(running)
        await client.create(SEGMENTS[0])
        expected = await small_runs(running, client, SEGMENTS[0], 4)
        honest_put, asked = world.chunks.put, asyncio.Event()

        async def held(*_):
            asked.set()
            await asyncio.Event().wait()

        world.chunks.put = held
        owned.maintenance.start()
        await asked.wait()
        await owned.maintenance.stop()
        world.chunks.put = honest_put
        world.clock.advance(60)
        await owned.maintenance.run_pass()
        assert len(runs_of(world, SEGMENTS[0])) == 1
        assert await client.read_all(SEGMENTS[0]) == expected


@pytest.mark.parametrize("change", ["truncate", "delete", "merge"])
async def test_what_happens_to_a_segment_meanwhile_wins(world: World, change):
    """The swap is a transaction on what was read: truncated, deleted and moved runs do not come back."""

    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        for segment in SEGMENTS[:2]:
            await client.create(segment)
        expected = await small_runs(running, client, SEGMENTS[0], 4)
        reached, go_on = asyncio.Event(), asyncio.Event()
        honest = world.chunks.put

        async def slow(name, parts):
            if "/packed/" in name and not reached.is_set():
                reached.set()
                await go_on.wait()
            await honest(name, parts)

        world.chunks.put = slow
        compaction = asyncio.ensure_future(owned.maintenance.run_pass())
        await reached.wait()
        if change == "truncate":
            await client.call(wire.TruncateSegment(3, SEGMENTS[0], 150))
            await running.until(lambda: len(runs_of(world, SEGMENTS[0])) == 3)
        elif change == "delete":
            await client.call(wire.DeleteSegment(3, SEGMENTS[0]))
            await running.until(lambda: not runs_of(world, SEGMENTS[0]))
        else:
            await client.call(wire.MergeSegments(3, SEGMENTS[1], SEGMENTS[0]))
            await running.flush()
        go_on.set()
        if change == "truncate":
            with pytest.raises(UnavailableError):
                await compaction
        else:
            await compaction
        assert_counts_agree(world.metadata)
        if change == "truncate":
            assert [each.offset for each in runs_of(world, SEGMENTS[0])] == [100, 200, 300]
            assert await client.read_all(SEGMENTS[0], start=150) == expected[150:]
        else:
            assert not runs_of(world, SEGMENTS[0])
        if change == "merge":
            owned.container.metadata.segments[SEGMENTS[1]].index.release_all()
            assert await client.read_all(SEGMENTS[1]) == expected


async def test_requests_of_a_compaction_are_bounded(world: World):
    async with world.running() as running:
        client = await running.connect()
        owned = await resting(running)
        for segment in SEGMENTS:
            await client.create(segment)
            await small_runs(running, client, segment, 4)
        await owned.writer.stop()
        calls = []
        for owner, method in (
            *((world.metadata, name) for name in ("query", "get", "get_many", "write")),
            *((world.chunks, name) for name in ("put", "read")),
        ):
            honest = getattr(owner, method)

            def counting(*args, honest=honest, method=method, **fields):
                calls.append(method if method != "write" else len(args))
                return honest(*args, **fields)

            setattr(owner, method, counting)
        _, compactor, *_ = owned.maintenance._tasks
        await compactor.run_pass()
        assert sorted(map(str, calls)) == sorted(
            ["put", *["query", "get_many", str(1 + 4 + 4 + 1)] * 3]  # from the cache: nothing is read
        )
        assert max(call for call in calls if isinstance(call, int)) <= WRITES_PER_TRANSACTION_MAX
