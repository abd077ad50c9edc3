"""Segments merged into segments that are merged on, while nobody knows under whose name tier 2 has the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from late_writes import LateWrites
from store_world import World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.model.chunks import chunk_partition
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Replace
from headrace.segmentstore.tiering import chunk_directory

pytestmark = pytest.mark.anyio

CHAIN = [f"scope/stream/{number}.#epoch.0" for number in range(4)]
WRITER = 5


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1)


@pytest.fixture(autouse=True)
def one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(chunk_directory, "MOVES_PER_WRITE_MAX", 1)
    monkeypatch.setattr(chunk_directory, "LINKED_MOVES_PER_WRITE_MAX", 1)


class Chain:
    """What is under way in a world; `expected` is what the last segment that was merged into should have."""

    def __init__(self, world: World):
        self.world = world
        self.expected = b"onetwo"

    def runs(self, segment):
        """Runs and links that tier 2 has under its name."""
        return self.world.metadata.query(f"chunks/{segment}", last="run/~", limit=100).records

    async def begin(self, running, *, own):
        """The first segment has two runs, each of the others one of its `own` bytes; the storage writer rests."""
        client = await running.connect()
        for segment in CHAIN:
            await client.create(segment)
            blocks = [b"one", b"two"] if segment == CHAIN[0] else [own] if own else []
            await client.set_up(segment, WRITER)
            for number, data in enumerate(blocks):
                await client.append(WRITER, number, data)
                await running.flush()
        await running.store.owned[0].writer.stop()

    async def merge(self, running, source, target, *, own=b""):
        client = await running.connect()
        await client.call(wire.MergeSegments(3, target, source))
        self.expected = own + self.expected
        await self.check(running, target)

    async def check(self, running, segment):
        """What memory has given away is read from tier 2."""
        running.store.owned[0].container.metadata.segments[segment].index.release_all()
        assert await (await running.connect()).read_all(segment) == self.expected

    async def move_without_a_word(self, running, segment, writes):
        """The storage writer moves bytes towards `segment`, in so many writes, and does not hear of the last one."""
        honest, counted = self.world.metadata.write, []

        def answers_get_lost(*changes):
            honest(*changes)
            counted.append(changes)
            if len(counted) == writes:
                raise UnavailableError("the answer was lost")

        self.world.metadata.write = answers_get_lost
        self.world.clock.advance(2e6)
        with pytest.raises(UnavailableError):
            await running.store.owned[0].writer.run_pass()
        self.world.metadata.write = honest
        assert len(counted) == writes
        await self.check(running, segment)

    async def rest_recovered(self, running):
        """The storage writer rests once it has written a snapshot, for which the first bytes of segments wait."""
        owned = running.store.owned[0]
        snapshots = owned.writer._snapshots
        snapshots.want()
        await running.until(lambda: snapshots.written > 0)
        await owned.writer.stop()

    async def end(self, running):
        """All of it comes to rest in the last segment, and nothing under the others' names."""
        last = CHAIN[-1]
        running.store.owned[0].writer.start()
        await running.flush()
        await running.until(lambda: not running.store.owned[0].container.metadata.deletions)
        assert running.store.owned[0].container.metadata.segments[last].is_stored
        await self.check(running, last)
        assert [len(self.runs(name)) for name in CHAIN[:-1]] == [0, 0, 0]


@pytest.mark.parametrize("own", [b"", b"own"])
@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("unheard", [(True, False), (False, True), (True, True)])
async def test_bytes_of_an_unrecorded_move_follow_further_merges(world: World, own, writes, unheard):
    chain = Chain(world)
    async with world.running() as running:
        await chain.begin(running, own=own)
        for (source, target), unheard_here in zip(pairwise(CHAIN), (*unheard, False), strict=True):
            await chain.merge(running, source, target, own=own)
            if unheard_here:
                await chain.move_without_a_word(running, target, writes)
                await chain.check(running, target)
        await chain.end(running)


@pytest.mark.parametrize("own", [b"", b"own"])
@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("unheard", [(True, False), (False, True), (True, True)])
async def test_bytes_of_a_move_lost_in_a_crash_follow_further_merges(world: World, own, writes, unheard):
    chain = Chain(world)
    async with world.running(graceful=False) as running:
        await chain.begin(running, own=own)
    for (source, target), unheard_here in zip(pairwise(CHAIN), (*unheard, False), strict=True):
        async with world.running(graceful=False) as running:
            await chain.rest_recovered(running)
            await chain.merge(running, source, target, own=own)
            if unheard_here:
                await chain.move_without_a_word(running, target, writes)
    async with world.running() as running:
        await running.store.owned[0].writer.stop()
        await chain.check(running, CHAIN[-1])
        await chain.end(running)


@pytest.mark.parametrize("own", [b"", b"own"])
@pytest.mark.parametrize("writes", [1, 2, 3])
async def test_lost_volume_keeps_bytes_of_an_unrecorded_move(world: World, own, writes):
    chain = Chain(world)
    async with world.running(graceful=False) as running:
        await chain.begin(running, own=own)
        for source, target in pairwise(CHAIN):
            await chain.merge(running, source, target, own=own)
            if target == CHAIN[1]:
                await chain.move_without_a_word(running, target, writes)
        await running.store.owned[0].writer._snapshots.write_last()
    world.disk = MemoryJournalDisk()
    async with world.running() as running:
        await running.store.owned[0].writer.stop()
        await chain.check(running, CHAIN[-1])
        await chain.end(running)


async def test_a_move_that_takes_effect_late_loses_nothing(world: World):
    """It had no answer, and does so when the next attempt has read the link, and not yet the runs behind it."""
    chain, (source, target, *_) = Chain(world), CHAIN
    async with world.running() as running:
        await chain.begin(running, own=b"")
        await chain.merge(running, source, target)
        writer = running.store.owned[0].writer
        late = LateWrites(world, Replace, lambda key: key.partition == chunk_partition(target))
        world.clock.advance(2e6)
        with pytest.raises(UnavailableError):
            await writer.run_pass()
        late.answer_again()
        query, asked = world.metadata.query, []

        def query_late(partition, **arguments):
            if partition == chunk_partition(source):
                asked.append(arguments)
                if len(asked) == 2:
                    late.take_effect()
            return query(partition, **arguments)

        world.metadata.query = query_late
        with pytest.raises(UnavailableError, match="changed"):
            await writer.run_pass()
        assert len(asked) == 2
        await chain.check(running, target)
        writer.start()
        await running.flush()
        await chain.check(running, target)
