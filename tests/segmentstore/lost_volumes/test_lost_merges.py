"""A volume is lost at any step of bringing merges to tier 2: each merge is there as a whole, or can be done again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from lost_volumes import NEVER_S, killed, lose_volume, snapshot
from segment_writes import WRITER, write
from store_world import RunningStore, WireClient, World

from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.controller.services.history import HistoryService
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.ports.metadata_store import Write
from headrace.ports.segment_stores import SegmentScaleRate
from headrace.segmentstore.tiering import chunk_directory

pytestmark = pytest.mark.anyio

STREAM = "scope/stream/0.#epoch.0"
TRANSACTION = STREAM + "#transaction." + "0" * 31 + "1"
CHUNK_WRITER = 77
OBJECT_BYTES = 100
ROUNDS = 6
CALLS_MAX = 60

FIRST, LAST = b"first" * 8, b"last" * 8
SMALL = [b"[small" + b"s" * 14, b"s" * 19 + b"]"]
LARGE = [b"[large" + b"-" * 44, b"-" * 50, b"-" * 49 + b"]"]


class Tier2Calls:
    """The calls that change tier 2, which end for good at one of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._write, self._put = world.metadata.write, world.chunks.put
        self.made = 0
        self._last: int | None = None
        self._arrives = False

    def die_at(self, call: int | None, *, arrives: bool) -> None:
        self.made, self._last, self._arrives = 0, call, arrives

    @property
    def _arrived(self) -> bool:
        self.made += 1
        if self._last is None or self.made < self._last:
            return True
        return self.made == self._last and self._arrives

    def _answer(self) -> None:
        if self._last is not None and self.made >= self._last:
            raise UnavailableError("this process is gone")

    def write(self, *writes: Write) -> None:
        if self._arrived:
            self._write(*writes)
        self._answer()

    async def put(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        if self._arrived:
            await self._put(name, parts)
        self._answer()

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        self._world.metadata.write, self._world.chunks.put = self.write, self.put
        try:
            yield
        finally:
            self._world.metadata.write, self._world.chunks.put = self._write, self._put


@pytest.fixture(autouse=True)
def few_moves_at_once(monkeypatch):
    monkeypatch.setattr(chunk_directory, "MOVES_PER_WRITE_MAX", 2)
    monkeypatch.setattr(chunk_directory, "LINKED_MOVES_PER_WRITE_MAX", 2)


@pytest.fixture
def new_world(make_world: type[World]) -> Callable[[], World]:
    def new() -> World:
        world = make_world(container_count=1)
        world.limits = replace(world.limits, object_bytes_max=OBJECT_BYTES, flush_age_s=1.0, tick_s=3600.0)
        return world

    return new


async def append_large(client: WireClient, number: int, chunks: list[bytes]) -> None:
    """As the client does it; the number moves with the merge."""
    created = await client.call(wire.CreateTransientSegment(1, WRITER, STREAM))
    await client.set_up(created.segment, CHUNK_WRITER)
    for chunk_number, chunk in enumerate(chunks):
        await client.append(CHUNK_WRITER, chunk_number, chunk)
    before = number - 1 if number else wire.NO_ATTRIBUTE_VALUE
    moves = wire.AttributeUpdate(WRITER, 4, number, before)
    merged = await client.call(wire.MergeSegments(2, STREAM, created.segment, attribute_updates=(moves,)))
    assert isinstance(merged, wire.SegmentsMerged), merged


async def write_events(client: WireClient, events: list[list[bytes]], first: int) -> None:
    for number, chunks in enumerate(events[first:], first):
        if len(chunks) > 1:
            await append_large(client, number, chunks)
        else:
            await client.set_up(STREAM, WRITER)
            await client.append(WRITER, number, chunks[0])


async def bring_to_tier_2(running: RunningStore, *, told: bool) -> None:
    """As many rounds as all of it takes, each with a snapshot if `told`, as far as the process lives."""
    world, owned = running.world, running.store.owned[0]
    for _ in range(ROUNDS):
        world.clock.advance(100 if told else 10)
        try:
            await owned.container.log.durable()
            await owned.writer.run_pass()
        except HeadraceError:
            return


def events_in(data: bytes, events: list[bytes]) -> list[int]:
    """Which events the bytes are; all of them whole."""
    found = []
    while data:
        (number,) = [number for number, event in enumerate(events) if data.startswith(event)] or [None]
        assert number is not None, f"no event begins with {data[:20]!r}"
        found.append(number)
        data = data[len(events[number]) :]
    return found


def history(world: World) -> bytes:
    """What readers of the chunk directory see of the stream, two runs at a time."""
    links = MemoryChunkLinks(world.chunks, 60, world.clock)
    stores = MemorySegmentStores()
    stores.create_segment("scope/stream/0.#epoch.0", SegmentScaleRate())
    service = HistoryService(world.metadata, stores, links)
    data, offset = b"", 0
    while offset is not None:
        page = service.chunks("scope", "stream", 0, offset, limit=2)
        data += b"".join(links.get(chunk.url, chunk.headers) for chunk in page.chunks)
        assert len(data) == page.stored_until
        offset = page.next_offset
    return data


async def at_every_call(new_world: Callable[[], World], scenario: Callable[..., Any]) -> None:
    """Let the process die before and after each of its calls of tier 2, and lose its volume."""
    tried = 0
    for arrives in (False, True):
        for call in range(1, CALLS_MAX):
            world = new_world()
            calls = Tier2Calls(world)
            await scenario(world, calls, call, arrives=arrives)
            tried += 1
            if calls.made < call:
                break
        else:
            raise AssertionError("the work does not come to its end")
    assert tried > 6


@pytest.mark.parametrize("told", [False, True], ids=["old snapshot", "new snapshots"])
@pytest.mark.parametrize("large", [SMALL, LARGE], ids=["one object", "several objects"])
async def test_large_event_is_restored_whole_or_sent_again(new_world: Callable[[], World], large, told):
    events = [[FIRST], large, [LAST]]
    whole = [b"".join(chunks) for chunks in events]

    async def scenario(world: World, calls, call, *, arrives):
        usual = world.limits
        world.limits = replace(usual, snapshot_every_s=30.0 if told else NEVER_S, snapshot_soon_s=1.0)
        async with calls.counted():
            calls.die_at(None, arrives=True)
            async with world.running(graceful=False) as running:
                client = await running.connect()
                await client.create(STREAM)
                await snapshot(running)
                await running.store.owned[0].writer.stop()
                running.store.owned[0].writer._snapshots._limits = replace(
                    world.limits, snapshot_soon_s=1.0 if told else NEVER_S
                )
                await write_events(client, events, 0)
                calls.die_at(call, arrives=arrives)
                await bring_to_tier_2(running, told=told)
                if calls.made < call:
                    return
        world.limits = usual
        seen = events_in(history(world), whole)
        lose_volume(world)
        async with world.running() as running:
            client = await running.connect()
            found = events_in(await client.read_all(STREAM), whole)
            assert found == list(range(len(found)))
            assert found[: len(seen)] == seen
            stored = await client.set_up(STREAM, WRITER)
            stored = -1 if stored == wire.NO_ATTRIBUTE_VALUE else stored
            assert stored < len(found), "a writer is told that an event is stored which is not"
            await write_events(client, events, stored + 1)
            assert events_in(await client.read_all(STREAM), whole) == [*found, *range(stored + 1, len(events))]

    await at_every_call(new_world, scenario)


@pytest.mark.parametrize("told", [False, True], ids=["old snapshot", "new snapshots"])
@pytest.mark.parametrize("flushed", [0, 2, 5, 7], ids=["in memory", "in part", "several moves", "all"])
async def test_merge_is_restored_whole_and_repeated_only_whole(new_world: Callable[[], World], flushed, told):
    """A source of whose merge no snapshot knew may lack bytes: it is refused, and its bytes are never there twice."""
    parts = [b"[txn" + b"0" * 16, *(b"%d" % number * 20 for number in range(1, 6)), b"6" * 19 + b"]"]
    whole = [FIRST, b"".join(parts), LAST]

    async def scenario(world: World, calls, call, *, arrives):
        usual = world.limits
        async with calls.counted():
            calls.die_at(None, arrives=True)
            async with world.running(graceful=False) as running:
                client = await running.connect()
                owned = running.store.owned[0]
                for name in (STREAM, TRANSACTION):
                    await client.create(name)
                await client.set_up(TRANSACTION, CHUNK_WRITER)
                for number, part in enumerate(parts):
                    await client.append(CHUNK_WRITER, number, part)
                    if number < flushed:
                        await running.flush()
                await snapshot(running)
                await owned.writer.stop()
                owned.writer._snapshots._limits = replace(usual, snapshot_soon_s=1.0 if told else NEVER_S)
                await write_events(client, [[FIRST]], 0)
                await client.call(wire.MergeSegmentsBatch(3, STREAM, (TRANSACTION,)))
                await client.append(WRITER, 1, LAST)
                calls.die_at(call, arrives=arrives)
                await bring_to_tier_2(running, told=told)
                if calls.made < call:
                    return
        seen = events_in(history(world), whole)
        lose_volume(world)
        async with world.running() as running:
            client = await running.connect()
            events = events_in(await client.read_all(STREAM), whole)
            assert events == list(range(len(events)))
            assert events[: len(seen)] == seen
            is_there = isinstance(await client.call(wire.GetStreamSegmentInfo(4, TRANSACTION)), wire.StreamSegmentInfo)
            again = await client.call(wire.MergeSegmentsBatch(3, STREAM, (TRANSACTION,)))
            data = await client.read_all(STREAM)
            if isinstance(again, wire.ErrorMessage):
                assert again.error_code == wire.ERROR_CODE_SOURCE_INCOMPLETE
                assert events_in(data, whole) == events
                # Of a source that never was in tier 2 nothing there tells that its bytes are those of the target.
                assert 1 not in events or not flushed
            else:
                assert isinstance(again, wire.SegmentsBatchMerged), again
                assert sorted(events_in(data, whole)) == sorted({*events, 1} if is_there else events)
            await running.flush()
            assert await client.read_all(STREAM) == data

    await at_every_call(new_world, scenario)


async def test_restoration_that_dies_at_any_call_goes_on(new_world: Callable[[], World]):
    """The first process dies at each of its calls, the second one while it restores what the first has left."""
    parts = [b"[txn" + b"0" * 16, b"1" * 20, b"2" * 20, b"3" * 20, b"4" * 19 + b"]"]
    whole = [FIRST, b"".join(parts)]

    async def scenario(world: World, call, restart):
        """How many calls the first process made, and how many the second."""
        calls = Tier2Calls(world)
        async with calls.counted():
            calls.die_at(None, arrives=True)
            async with world.running(graceful=False) as running:
                client = await running.connect()
                for name in (STREAM, TRANSACTION):
                    await client.create(name)
                for number, part in enumerate(parts):
                    await write(client, TRANSACTION, [part], writer=CHUNK_WRITER, first=number)
                    await running.flush()
                await write_events(client, [[FIRST]], 0)
                await running.flush()
                await running.store.owned[0].writer.stop()
                await client.call(wire.MergeSegments(3, STREAM, TRANSACTION))
                calls.die_at(call, arrives=True)
                await bring_to_tier_2(running, told=True)
            made = calls.made
            lose_volume(world)
            calls.die_at(restart, arrives=True)
            with suppress(UnavailableError):
                async with world.running(graceful=False):
                    pass
            made_again = calls.made
        lose_volume(world)
        assert events_in(history(world), whole) in ([0], [0, 1])
        async with world.running() as running:
            client = await running.connect()
            await client.call(wire.MergeSegmentsBatch(3, STREAM, (TRANSACTION,)))
            await running.settle()
            assert await client.read_all(STREAM) == b"".join(whole)
            assert not world.metadata.query(f"chunks/{TRANSACTION}", limit=1).records
        return made, made_again

    tried = 0
    for call in range(1, CALLS_MAX):
        for restart in range(1, CALLS_MAX):
            made, made_again = await scenario(new_world(), call, restart)
            tried += made_again >= restart
            if made_again < restart:
                break
        if made < call:
            break
    assert tried > 2 * call


async def test_writer_number_of_a_lost_merge_is_taken_back(make_world: type[World]):
    world = make_world(container_count=1)

    async with killed(world) as running:
        client = await running.connect()
        await client.create(STREAM)
        await write_events(client, [[FIRST]], 0)
        await running.flush()
        await append_large(client, 1, SMALL)
        await write(client, STREAM, [LAST], first=2)
        await snapshot(running)
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(STREAM) == FIRST
        assert await client.set_up(STREAM, WRITER) == 0
        await append_large(client, 1, SMALL)
        assert await client.read_all(STREAM) == FIRST + b"".join(SMALL)


async def test_merge_behind_lost_bytes_can_be_repeated(make_world: type[World]):
    """Tier 2 has all of the transaction, but not what was appended to its target before."""
    world = make_world(container_count=1)

    async with killed(world) as running:
        client = await running.connect()
        for name in (STREAM, TRANSACTION):
            await client.create(name)
        for number in range(5):
            await write(client, TRANSACTION, [b"%d" % number], writer=CHUNK_WRITER, first=number)
            await running.flush()
        await running.store.owned[0].writer.stop()
        await write(client, STREAM, [FIRST])
        await client.call(wire.MergeSegments(3, STREAM, TRANSACTION))
        snapshots = running.store.owned[0].writer._snapshots
        world.clock.advance(100)
        await snapshots.advance()
        await running.store.owned[0].container.log.durable()
        await snapshots.advance()
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(STREAM) == b""
        merged = await client.call(wire.MergeSegments(3, STREAM, TRANSACTION))
        assert merged == wire.SegmentsMerged(3, STREAM, TRANSACTION, 5)
        await running.flush()
        assert await client.read_all(STREAM) == b"01234"
