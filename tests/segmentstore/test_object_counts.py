"""Packed objects: how many runs they hold, how these are counted, and when an object is garbage."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from late_writes import LateWrites
from object_counts import assert_counts_agree, counts_of
from store_world import World

from functions.wiring import CHUNK_LINKS_EXPIRE_S
from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.model.chunks import ChunkRun, chunk_partition, chunk_run, packed_name
from headrace.model.errors import CorruptError, FencedError, UnavailableError
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, WRITES_PER_TRANSACTION_MAX, Create, Delete, Key
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_WRITE_MAX, ChunkDirectory, fitting
from headrace.segmentstore.tiering.garbage_collector import OBJECTS_PER_PAGE
from headrace.segmentstore.tiering.storage_limits import StorageLimits

pytestmark = pytest.mark.anyio

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(3 * RUNS_PER_WRITE_MAX)]
WRITER = 5


@pytest.fixture
def world(make_world: type[World]):
    made = make_world(container_count=1, maintenance=False)
    made.chunks = MemoryChunkStorage(made.clock)
    return made


def runs_of(world: World, segment):
    return [
        chunk_run(r.key.sort, r.body, r.version)
        for r in world.metadata.query(chunk_partition(segment), limit=999).records
    ]


def object_names(world: World):
    return sorted(world.chunks._objects.keys() - {name for name in world.chunks._objects if name.startswith("snap")})


async def write(client, segment, data, number=0):
    await client.set_up(segment, WRITER)
    await client.append(WRITER, number, data)


async def sweep(world: World, running):
    """A whole sweep of the only container, after the time of grace."""
    world.clock.advance(max(world.limits.object_grace_s, world.limits.sweep_every_s))
    while await running.store.owned[0].maintenance.run_pass():
        pass


class Counted:
    """Transactions of the chunk directory, and a way to let one fail."""

    def __init__(self, world: World):
        self.sizes = []
        self.fail_after = None
        self._honest = world.metadata.write
        world.metadata.write = self

    def __call__(self, *writes):
        if any(each.key.partition.startswith("chunks/") for each in writes):
            if self.fail_after is not None and len(self.sizes) >= self.fail_after:
                raise UnavailableError("the directory is away")
            self.sizes.append(len(writes))
        self._honest(*writes)


async def test_one_object_holds_the_runs_of_many_transactions(world: World):
    async with world.running() as running:
        client = await running.connect()
        for segment in SEGMENTS:
            await client.create(segment)
            await write(client, segment, segment.encode())
        counted = Counted(world)
        await running.flush()
        assert counted.sizes == [WRITES_PER_TRANSACTION_MAX] * 3
        assert len(object_names(world)) == 1
        (count,) = counts_of(world.metadata).values()
        assert count.runs == len(SEGMENTS)
        assert_counts_agree(world.metadata)
        for segment in (SEGMENTS[0], SEGMENTS[-1]):
            running.store.owned[0].container.metadata.segments[segment].index.release_all()
            assert await client.read_all(segment) == segment.encode()


@pytest.mark.parametrize("entered", [1, 2])
async def test_runs_missed_by_a_crash_are_packed_again(world: World, entered):
    counted = Counted(world)
    async with world.running(graceful=False) as running:
        client = await running.connect()
        for segment in SEGMENTS:
            await client.create(segment)
            await write(client, segment, segment.encode())
        counted.fail_after = entered
        world.clock.advance(2e9)
        await running.until(lambda: len(object_names(world)) > 1)  # it has tried again
    counted.fail_after = None
    world.disk = world.disk.cut_power(1)
    async with world.running() as running:
        client = await running.connect()
        await running.flush()
        assert_counts_agree(world.metadata)
        assert sum(count.runs for count in counts_of(world.metadata).values()) == len(SEGMENTS)
        for segment in SEGMENTS:
            assert [each.length for each in runs_of(world, segment)] == [len(segment)]
        await sweep(world, running)  # deletes objects without a run, and keeps those that another writer has entered
        assert object_names(world) == sorted(counts_of(world.metadata))
        for segment in SEGMENTS[:: RUNS_PER_WRITE_MAX // 2]:
            running.store.owned[0].container.metadata.segments[segment].index.release_all()
            assert await client.read_all(segment) == segment.encode()


async def test_object_is_deleted_after_its_last_run_and_the_grace_time(world: World):
    async with world.running() as running:
        client = await running.connect()
        for segment in SEGMENTS[:2]:
            await client.create(segment)
            await write(client, segment, b"abc")
        await running.flush()
        maintenance = running.store.owned[0].maintenance
        await client.call(wire.DeleteSegment(3, SEGMENTS[0]))
        await running.until(lambda: not runs_of(world, SEGMENTS[0]))
        await sweep(world, running)
        assert len(object_names(world)) == 1
        await client.call(wire.DeleteSegment(4, SEGMENTS[1]))
        await running.until(lambda: not runs_of(world, SEGMENTS[1]))
        world.clock.advance(world.limits.object_grace_s - 1)
        running.store.owned[0].maintenance._tasks[0]._due_s = 0
        await maintenance.run_pass()
        assert len(object_names(world)) == 1
        assert counts_of(world.metadata)
        await sweep(world, running)
        assert not object_names(world)
        assert not counts_of(world.metadata)


async def test_object_of_an_unanswered_entry_is_kept(world: World, monkeypatch: pytest.MonkeyPatch):
    """The entry may take effect later, and readers would find a run of an object that is gone."""
    world.limits = replace(world.limits, object_grace_s=1.0, sweep_every_s=1.0)
    put, puts, may_go_on = world.chunks.put, [], asyncio.Event()

    async def held_put(name, parts):
        puts.append(name)
        await put(name, parts)
        if len(puts) > 1:
            await may_go_on.wait()

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], b"abc")
        monkeypatch.setattr(world.chunks, "put", held_put)
        entries = LateWrites(world, Create, lambda key: key.partition == chunk_partition(SEGMENTS[0]))
        world.clock.advance(world.limits.flush_age_s)
        await running.until(lambda: len(puts) == 2)
        entries.answer_again()
        await sweep(world, running)
        entries.take_effect()
        may_go_on.set()
        await running.flush()
        running.store.owned[0].container.metadata.segments[SEGMENTS[0]].index.release_all()
        assert await client.read_all(SEGMENTS[0]) == b"abc"
        world.clock.advance(UNANSWERED_WRITE_S)
        await sweep(world, running)
        assert object_names(world) == puts[:1]


async def test_truncation_frees_what_lies_before_the_start(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        for number in range(3):
            await write(client, SEGMENTS[0], b"0123456789", number)
            await running.flush()
        await client.call(wire.TruncateSegment(3, SEGMENTS[0], 25))
        await running.flush()
        await running.until(lambda: len(runs_of(world, SEGMENTS[0])) == 1)
        assert_counts_agree(world.metadata)
        assert len(object_names(world)) == 3
        await sweep(world, running)
        assert len(object_names(world)) == 1
        assert await client.read_all(SEGMENTS[0], start=25) == b"56789"


async def test_what_is_not_the_collectors_stays(world: World):
    """Snapshots, indexes of tables, objects of stores that did not count, and what may still be entered."""

    strangers = [
        "container-0000/0000000001-0000000001",
        "container-0000/packed/other",
        "container-0001/packed/0000000000-0000000001",
        "snapshots/container-0000/0000000000-0000000009",
        "tables/container-0000/0000000000-0000000001",
        packed_name(0, 99, 1),
    ]
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], b"abc")
        await running.flush()
        kept = object_names(world)
        for name in [*strangers, packed_name(0, 0, 77)]:
            await world.chunks.put(name, [b"x"])
        names = running.store.owned[0].maintenance._tasks[0]._names
        with names.new() as in_flight:
            await world.chunks.put(in_flight, [b"x"])
            await sweep(world, running)
            assert object_names(world) == sorted([*kept, *[s for s in strangers if s[:4] != "snap"], in_flight])
        await world.chunks.put(packed_name(0, 0, 78), [b"x"])  # too young
        world.clock.advance(world.limits.object_grace_s / 2)
        running.store.owned[0].maintenance._tasks[0]._due_s = 0
        await running.store.owned[0].maintenance.run_pass()
        assert packed_name(0, 0, 78) in object_names(world)
        assert in_flight not in object_names(world)


async def test_a_deposed_owner_counts_and_collects_nothing(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], b"abc")
        await running.flush()
        await client.call(wire.DeleteSegment(3, SEGMENTS[0]))
        await running.until(lambda: not runs_of(world, SEGMENTS[0]))
        owned = running.store.owned[0]
        await owned.writer.stop()
        before = counts_of(world.metadata)
        world.claim(0)
        with pytest.raises(FencedError):
            await sweep(world, running)
        assert counts_of(world.metadata) == before


async def test_a_removal_that_races_with_another_edit_is_judged_anew(world: World):
    """What is removed must be what was read: else a run that took the place of several would go with the first."""

    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    name = packed_name(0, 0, 1)
    former = [ChunkRun(10 * n, 10, name, 10 * n) for n in range(3)]
    assert not await directory.add([(SEGMENTS[0], each) for each in former], {name: 30})
    read = await directory.page(SEGMENTS[0])
    merged = ChunkRun(0, 30, packed_name(0, 0, 2), 0)
    await directory.replace(SEGMENTS[0], read, merged, 30)
    for late in (
        lambda: directory.remove(SEGMENTS[0], read[:1]),
        lambda: directory.replace(SEGMENTS[0], read[:2], merged, 30),
        lambda: directory.move(SEGMENTS[0], SEGMENTS[1], read[:1], [read[0].moved(5, 0)]),
    ):
        with pytest.raises(UnavailableError):
            await late()
    assert runs_of(world, SEGMENTS[0]) == [merged]
    assert_counts_agree(world.metadata)
    assert {n: c.runs for n, c in counts_of(world.metadata).items()} == {name: 0, merged.object_name: 1}


async def test_runs_that_nobody_counted_stop_the_container(world: World, caplog):
    """Somebody removed the count of an object: removing its runs would make live bytes garbage."""

    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await write(client, SEGMENTS[0], b"abc")
        await running.flush()
        owned = running.store.owned[0]
        (name,) = counts_of(world.metadata)
        world.metadata.write(Delete(Key("objects/container-0000", name), 0))
        await client.call(wire.DeleteSegment(3, SEGMENTS[0]))
        await running.until(lambda: owned.container.failure is not None)
        assert isinstance(owned.container.failure, CorruptError)
        assert "event=foreign_change" in caplog.text


async def test_sweep_costs_a_listing_and_a_query_per_1000_objects(world: World):
    async with world.running() as running:
        directory = ChunkDirectory(world.metadata, 0, 0, world.clock)
        count = 2 * OBJECTS_PER_PAGE + 10
        for number in range(count):
            name = packed_name(0, 0, 1000 + number)
            await world.chunks.put(name, [b"x"])
            await directory.add([(SEGMENTS[0], ChunkRun(number, 1, name, 0))], {name: 1})
        await directory.remove(SEGMENTS[0], await directory.page(SEGMENTS[0], limit=40))
        calls = []
        for owner, method in ((world.metadata, "query"), (world.metadata, "get"), (world.metadata, "write"),
                              (world.chunks, "list"), (world.chunks, "delete")):  # fmt: skip
            honest = getattr(owner, method)

            def counting(*args, honest=honest, method=method, **fields):
                calls.append(method)
                return honest(*args, **fields)

            setattr(owner, method, counting)
        await sweep(world, running)
        assert sorted(calls) == sorted(["query"] * 3 + ["list"] * 3 + ["delete", "write"])
        assert len(object_names(world)) == count - 40


async def test_deleted_or_cut_object_is_reported_before_a_read(world: World, caplog):
    async with world.running() as running:
        client = await running.connect()
        for number in range(2):
            await client.create(SEGMENTS[number])
            await write(client, SEGMENTS[number], b"abc")
            await running.flush()
        deleted, cut = object_names(world)
        await world.chunks.delete([deleted, cut])
        await world.chunks.put(cut, [b"ab"])
        with caplog.at_level(logging.CRITICAL):
            await sweep(world, running)
        told = [record.getMessage() for record in caplog.records if "event=foreign_change" in record.getMessage()]
        assert [f"object={deleted}" in told[0], f"object={cut}" in told[1], len(told)] == [True, True, 2]


def test_the_time_of_grace_is_longer_than_any_link_lives():
    assert StorageLimits().object_grace_s > 4 * CHUNK_LINKS_EXPIRE_S


def test_transaction_size_counts_runs_and_their_objects():
    def runs(*objects):
        return [ChunkRun(n, 1, name, 0) for n, name in enumerate(objects)]

    assert fitting([], 10) == 0
    assert fitting(runs("a"), 1) == 0
    assert fitting(runs("a", "a", "a", "b"), 4) == 3
    assert fitting(runs("a", "b", "c"), 4) == 2
    assert fitting(runs(*"abcde"), 100) == 5


async def test_removal_of_many_runs_is_split_into_transactions(world: World):
    directory = ChunkDirectory(world.metadata, 0, world.claim(0), world.clock)
    for number in range(150):
        name = packed_name(0, 0, number)
        await directory.add([(SEGMENTS[0], ChunkRun(number, 1, name, 0))], {name: 1})
    counted = Counted(world)
    removed = 0
    while runs := await directory.page(SEGMENTS[0], limit=RUNS_PER_WRITE_MAX):
        removed += await directory.remove(SEGMENTS[0], runs)
    assert removed == 150
    assert max(counted.sizes) <= WRITES_PER_TRANSACTION_MAX
    assert len(counted.sizes) == 4  # 49 runs and their objects at a time
    assert_counts_agree(world.metadata)
