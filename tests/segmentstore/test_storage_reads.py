"""Reads from tier 2: few large requests, shared, ahead of whoever reads on, in bounded memory; nobody starves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import World

from headrace import wire
from headrace.model.chunks import ChunkRun
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.segmentstore.connections.connection_limits import STORAGE_READS_MAX
from headrace.segmentstore.tiering.range_cache import (
    PIECE_BYTES,
    PIECES_AHEAD,
    SMALL_PIECE_BYTES,
    Range,
    RangeCache,
    piece_at,
    pieces_behind,
)
from headrace.segmentstore.tiering.storage_reader import encode_read_token, run_hint

pytestmark = pytest.mark.anyio

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(2)]
WRITER = 5
MIB = 1 << 20


class Gated:
    """Chunk storage whose reads of chosen objects wait until they may go on; counts what is asked."""

    def __init__(self, chunks=None):
        self.asked = []
        self.ended = 0
        self.slow = set()
        self.go_on = asyncio.Event()
        self.error = None
        self._chunks = chunks

    def __getattr__(self, name):
        return getattr(self._chunks, name)

    async def read(self, name, position, length):
        self.asked.append(Range(name, position, length))
        try:
            await asyncio.sleep(0)
            if name in self.slow:
                await self.go_on.wait()
            if self.error:
                raise self.error
        finally:
            self.ended += 1
        return bytes(length) if self._chunks is None else await self._chunks.read(name, position, length)


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


# The cache


async def test_readers_of_a_range_share_one_request():
    storage = Gated()
    cache = RangeCache(storage, 100)
    wanted = Range("a", 0, 60)
    assert await asyncio.gather(*(cache.read(wanted) for _ in range(5))) == [bytes(60)] * 5
    assert await cache.read(wanted) == bytes(60)
    assert storage.asked == [wanted]
    await cache.read(Range("b", 0, 60))
    await cache.read(wanted)
    assert len(storage.asked) == 3  # there was no room for both


async def test_an_error_is_everybodys_and_is_not_remembered():
    storage = Gated()
    cache = RangeCache(storage, 100)
    storage.error = UnavailableError("away")
    results = await asyncio.gather(*(cache.read(Range("a", 0, 60)) for _ in range(3)), return_exceptions=True)
    assert results == [storage.error] * 3
    assert (cache.requested_bytes, cache.remembered_bytes) == (0, 0)
    storage.error = None
    assert await cache.read(Range("a", 0, 60)) == bytes(60)
    with pytest.raises(InvalidRequestError):
        await cache.read(Range("a", 0, 101))


async def test_a_request_ends_when_the_last_who_wants_it_has_gone():
    storage = Gated()
    storage.slow.add("a")
    cache = RangeCache(storage, 100)
    wanted = Range("a", 0, 60)
    readers = [asyncio.ensure_future(cache.read(wanted)) for _ in range(2)]
    expected = cache.expect(wanted)
    await turns()
    for reader in readers:
        reader.cancel()
    await turns()
    assert storage.ended == 0
    cache.release(wanted, expected)
    await turns()
    assert (storage.ended, cache.requested_bytes) == (1, 0)
    assert cache.get(wanted) is None


async def test_ranges_unused_for_longest_are_forgotten_first():
    storage = Gated()
    cache = RangeCache(storage, 100)
    for name in "ab":
        await cache.read(Range(name, 0, 40))
    assert cache.get(Range("a", 0, 40)) == bytes(40)
    await cache.read(Range("c", 0, 40))
    assert [cache.get(Range(name, 0, 40)) is not None for name in "abc"] == [True, False, True]


async def test_a_full_cache_forgets_no_more_than_it_must():
    storage = Gated()
    cache = RangeCache(storage, 100)
    ranges = [Range(name, 0, length) for name, length in (("a", 20), ("b", 30), ("c", 50), ("d", 40), ("e", 10))]
    for wanted in ranges[:3]:
        await cache.read(wanted)
    assert [cache.remembered_bytes, len(cache._remembered)] == [100, 3]
    await cache.read(ranges[3])
    assert [*cache._remembered] == [ranges[2], ranges[3]]
    await cache.read(ranges[4])
    assert (cache.remembered_bytes, [*cache._remembered]) == (100, ranges[2:])
    storage.slow.add("f")
    reading = asyncio.ensure_future(cache.read(Range("f", 0, 60)))
    await turns()
    assert (cache.requested_bytes, cache.remembered_bytes, [*cache._remembered]) == (60, 10, ranges[4:])
    storage.go_on.set()
    assert await reading == bytes(60)
    await cache.read(Range("g", 0, 31))
    assert cache.remembered_bytes == 91, "with one byte more than the budget the oldest is forgotten"


async def test_range_that_arrives_twice_is_counted_once():
    """A request may bring the bytes although it was cancelled."""

    class Late(Gated):
        async def read(self, name, position, length):
            try:
                return await super().read(name, position, length)
            except asyncio.CancelledError:
                return bytes(length)

    storage = Late()
    storage.slow.add("a")
    cache = RangeCache(storage, 100)
    wanted = Range("a", 0, 40)
    reader = asyncio.ensure_future(cache.read(wanted))
    await turns()
    reader.cancel()
    await asyncio.sleep(0)
    again = asyncio.ensure_future(cache.read(wanted))
    await turns()
    storage.go_on.set()
    assert await again == bytes(40)
    assert len(storage.asked) == 2
    assert (cache.requested_bytes, cache.remembered_bytes) == (0, 40)


async def test_a_reader_that_waits_for_room_may_go():
    storage = Gated()
    storage.slow.add("a")
    cache = RangeCache(storage, 100)
    first = asyncio.ensure_future(cache.read(Range("a", 0, 100)))
    await turns()
    waiting = [asyncio.ensure_future(cache.read(Range(name, 0, 50))) for name in "bcd"]
    await turns()
    waiting[1].cancel()
    storage.go_on.set()
    assert [len(await each) for each in (first, waiting[0], waiting[2])] == [100, 50, 50]
    assert cache.requested_bytes == 0


async def test_the_whole_budget_can_be_used_at_once():
    storage = Gated()
    storage.slow.update("abcd")
    cache = RangeCache(storage, 100)
    assert cache.takes_large(Range("a", 0, 75))
    assert not cache.takes_large(Range("a", 0, 76))
    reads = [asyncio.ensure_future(cache.read(Range(name, 0, 50))) for name in "ab"]
    reads.append(asyncio.ensure_future(cache.read(Range("c", 0, 1))))
    await turns()
    assert storage.asked == [Range("a", 0, 50), Range("b", 0, 50)]
    storage.go_on.set()
    assert await asyncio.gather(*reads) == [bytes(50), bytes(50), bytes(1)]
    assert await cache.read(Range("d", 0, 100)) == bytes(100)


async def test_a_request_goes_on_for_the_one_that_needs_it():
    storage = Gated()
    storage.slow.add("a")
    cache = RangeCache(storage, 100)
    wanted = Range("a", 0, 60)
    reader = asyncio.ensure_future(cache.read(wanted))
    await turns()
    expected = cache.expect(wanted)
    cache.release(wanted, expected)
    await turns()
    assert not reader.done()
    reader.cancel()
    await asyncio.sleep(0)
    again = asyncio.ensure_future(cache.read(wanted))  # the request is cancelled, but has not ended
    storage.go_on.set()
    assert await again == bytes(60)
    assert (len(storage.asked), cache.requested_bytes) == (2, 0)


async def test_small_requests_have_room_while_large_ones_are_stuck():
    storage = Gated()
    storage.slow.add("slow")
    cache = RangeCache(storage, 100)
    stuck = []
    while cache.takes_large(Range("slow", len(stuck), 30)):
        stuck.append(asyncio.ensure_future(cache.read(Range("slow", len(stuck), 30))))
        await turns()
    assert len(stuck) == 2
    assert cache.takes_large(Range("slow", 0, 30))  # on its way: costs nothing more
    assert await cache.read(Range("other", 0, 20)) == bytes(20)
    waiting = asyncio.ensure_future(cache.read(Range("third", 0, 50)))
    await turns()
    assert not waiting.done()
    storage.go_on.set()
    assert await waiting == bytes(50)
    await asyncio.gather(*stuck)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.sampled_from(["read", "expect", "cancel", "turn"])),
        max_size=60,
    )
)
async def test_the_budget_holds_whatever_happens(steps):
    storage = Gated()
    storage.slow.update("ab")
    cache = RangeCache(storage, 100)
    tasks, expected = [], []
    for name, length, step in steps:
        wanted = Range(name, 0, length)
        if step == "read":
            tasks.append(asyncio.ensure_future(cache.read(wanted)))
        elif step == "expect":
            request = cache.expect(wanted)
            expected += [(wanted, request)] if request else []
        elif step == "cancel" and tasks:
            tasks.pop(length % len(tasks)).cancel()
        else:
            await turns(2)
        assert cache.requested_bytes + cache.remembered_bytes <= cache.budget_bytes
        assert cache.remembered_bytes == sum(each.length for each in cache._remembered)
    storage.go_on.set()
    for each in expected:
        cache.release(*each)
    for task, data in zip(tasks, await asyncio.gather(*tasks), strict=True):
        assert len(data) > 0, task
    await turns()
    assert cache.requested_bytes == 0
    assert storage.ended == len(storage.asked)


def test_pieces_cover_runs_without_a_gap():
    runs = [ChunkRun(100, 2 * PIECE_BYTES + 7, "a", 50), ChunkRun(100 + 2 * PIECE_BYTES + 7, 10, "b", 0)]
    assert piece_at(runs[0], 100, PIECE_BYTES) == Range("a", 50, PIECE_BYTES)
    assert piece_at(runs[0], 100 + PIECE_BYTES, PIECE_BYTES) == Range("a", 50 + PIECE_BYTES, PIECE_BYTES)
    assert piece_at(runs[0], runs[0].end - 1, PIECE_BYTES) == Range("a", 50 + 2 * PIECE_BYTES, 7)
    assert pieces_behind(runs, 100) == [Range("a", 50 + PIECE_BYTES, PIECE_BYTES), Range("a", 50 + 2 * PIECE_BYTES, 7)]
    assert pieces_behind(runs, 100 + PIECE_BYTES) == [Range("a", 50 + 2 * PIECE_BYTES, 7), Range("b", 0, 10)]
    assert pieces_behind(runs, runs[1].offset) == pieces_behind(runs[1:], 0) == []


# In a store


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1, cache_bytes=64 * MIB, block_bytes=MIB, file_bytes=32 * MIB)


async def stored(running, sizes_mib):
    """Segments with one run each, of which memory has nothing."""
    client = await running.connect()
    for segment, size in zip(SEGMENTS, sizes_mib, strict=False):
        await client.create(segment)
        await client.set_up(segment, WRITER)
        for number in range(size):
            await client.append(WRITER, number, bytes([number]) * MIB)
        await running.flush()
        running.store.owned[0].container.metadata.segments[segment].index.release_all()
    gated = Gated(running.world.chunks)
    running.store.read_cache._chunk_storage = gated
    return client, gated


def contents(size_mib):
    return b"".join(bytes([number]) * MIB for number in range(size_mib))


async def test_catch_up_read_prefetches_one_request_per_piece(world: World):
    async with world.running() as running:
        client, gated = await stored(running, [18])
        await client.call(wire.ReadSegment(SEGMENTS[0], 0, MIB, "", 3))
        assert len(gated.asked) == 1
        await client.call(wire.ReadSegment(SEGMENTS[0], MIB, MIB, "", 3))
        await running.until(lambda: len(gated.asked) == 1 + PIECES_AHEAD)
        # Pieces that are still on their way would be asked for again: the next read begins elsewhere.
        await running.until(lambda: running.store.read_cache.requested_bytes == 0)
        assert await client.read_all(SEGMENTS[0]) == contents(18)
        assert [asked.length for asked in gated.asked] == [PIECE_BYTES] * 4 + [2 * MIB]
        assert await client.read_all(SEGMENTS[0]) == contents(18)
        assert len(gated.asked) == 5


async def test_replies_are_no_larger_than_what_is_asked(world: World):
    async with world.running() as running:
        client, gated = await stored(running, [6])
        for asked, most in ((10 * MIB, 2 * MIB), (300_000, 300_000), (100, 100)):
            reply = await client.call(wire.ReadSegment(SEGMENTS[0], 5, asked, "", 3))
            assert len(reply.data) == most
        assert len(gated.asked) == 1
        reply = await client.call(wire.ReadSegment(SEGMENTS[0], 5 * MIB + 1, 100, "", 3))
        assert len(reply.data) == 100
        assert gated.asked[-1].length == SMALL_PIECE_BYTES


async def test_a_slow_request_delays_only_its_readers(world: World):
    world.limits = replace(world.limits, read_cache_bytes=8 * MIB)

    async with world.running() as running:
        client, gated = await stored(running, [8, 2])
        gated.slow.add(sorted(name for name in world_objects(running))[0])
        slow = [await running.connect() for _ in range(3)]
        for number, each in enumerate(slow):
            for position in range(8):
                each.send(wire.ReadSegment(SEGMENTS[0], position * MIB + number, MIB, "", 3))
        await running.until(lambda: len(gated.asked) >= 2)
        assert await client.read_all(SEGMENTS[1]) == contents(2)
        assert running.store.read_cache.requested_bytes <= 8 * MIB
        gated.go_on.set()
        for each in slow:
            for _ in range(8):
                assert isinstance(await each.receive(), wire.SegmentRead)


def world_objects(running):
    return [name for name in running.world.chunks._objects if "/packed/" in name]


async def test_what_was_asked_ahead_ends_with_its_reader(world: World):
    async with world.running() as running:
        _, gated = await stored(running, [16])
        reader = await running.connect()
        await reader.call(wire.ReadSegment(SEGMENTS[0], 0, MIB, "", 3))
        gated.slow.update(world_objects(running))
        await reader.call(wire.ReadSegment(SEGMENTS[0], MIB, MIB, "", 3))
        await running.until(lambda: running.store.read_cache.requested_bytes == PIECES_AHEAD * PIECE_BYTES)
        reader.close()
        await running.until(lambda: running.store.read_cache.requested_bytes == 0)
        assert gated.ended == len(gated.asked)


async def test_an_object_that_was_cut_is_an_error_and_no_other_bytes(world: World):
    async with world.running() as running:
        client, _ = await stored(running, [2])
        chunks = running.world.chunks
        (name,) = world_objects(running)
        whole = chunks.read_now(name, 0, 2 * MIB)
        await chunks.delete([name])
        await chunks.put(name, [whole[:-1]])
        reply = await client.call(wire.ReadSegment(SEGMENTS[0], 0, MIB, "", 3))
        assert isinstance(reply, wire.ErrorMessage)
        assert await client.closed()
        with pytest.raises(NotFoundError):
            await chunks.read(name, 0, 2 * MIB)


async def test_reads_of_a_removed_segment_let_others_go_on(world: World):
    """A read waits until one of the others has an answer, also if that is that the segment is gone."""
    async with world.running() as running:
        client, gated = await stored(running, [1, 1])
        (removed, _) = sorted(world_objects(running))
        gated.slow.add(removed)
        for number in range(STORAGE_READS_MAX):
            client.send(wire.ReadSegment(SEGMENTS[0], number, 100, "", 3))
        client.send(wire.ReadSegment(SEGMENTS[1], 0, 100, "", 4))
        await running.until(lambda: len(gated.asked) == 1)
        await (await running.connect()).call(wire.DeleteSegment(5, SEGMENTS[0]))
        await world.chunks.delete([removed])
        gated.go_on.set()
        # In any order: reads that the store gets after the removal are refused before one waits for another.
        replies = [await client.receive() for _ in range(STORAGE_READS_MAX + 1)]
        assert sum(isinstance(each, wire.NoSuchSegment) for each in replies) == STORAGE_READS_MAX
        assert [each.request_id for each in replies if isinstance(each, wire.SegmentRead)] == [4]


async def test_a_second_source_of_a_name_is_read_itself(world: World):
    """A remembered run of the first source must not be taken for one of the second."""
    target, source = SEGMENTS[0], SEGMENTS[1]

    async with world.running() as running:
        client = await running.connect()
        await client.create(target)
        owned = running.store.owner_of(target)
        for number, event in enumerate([b"first", b"other"], 1):
            await client.create(source)
            await client.set_up(source, WRITER)
            await client.append(WRITER, 1, event)
            await running.flush()
            await owned.writer.stop()  # tier 2 keeps the bytes under the name of the source
            assert await client.call(wire.MergeSegments(3, target, source)) == wire.SegmentsMerged(
                3, target, source, 5 * number
            )
            owned.container.metadata.segments[target].index.release_all()
            assert await client.read_all(target) == b"firstother"[: 5 * number]
            owned.writer.start()
            await running.flush()
            await running.until(lambda: not owned.container.metadata.deletions)
        assert await client.read_all(target) == b"firstother"


@pytest.mark.parametrize(("run_offset", "hint"), [(0, 0), (10, 10), (11, None)])
def test_a_token_tells_where_the_run_began(run_offset: int, hint: int | None):
    assert run_hint(encode_read_token(10, run_offset), 10) == hint


@pytest.mark.parametrize("damage", [lambda t: b"", lambda t: t[:-1], lambda t: t + b"x", lambda t: b"\2" + t[1:]])
def test_a_token_of_another_kind_is_no_hint(damage: Callable[[bytes], bytes]):
    assert run_hint(damage(encode_read_token(10, 5)), 10) is None


@pytest.mark.parametrize("offset", [9, 11])
def test_a_token_of_another_read_is_no_hint(offset: int):
    assert run_hint(encode_read_token(10, 5), offset) is None
