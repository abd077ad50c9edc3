"""Tables that outgrow memory: their index, its requests and bounds, compaction, and what may go wrong under way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest
from table_client import TableClient

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.codec import wire_commands as wire
from headrace.model.errors import UnavailableError
from headrace.model.names import container_of_segment
from headrace.ports.metadata_store import Key, Replace
from headrace.segmentstore.tables.limits import TableLimits

TABLE = "scope/_tables/0.#epoch.0"
ANY, NONE = wire.NO_VERSION, wire.NOT_EXISTS
SMALL = TableLimits(
    tail_memory_bytes=20_000,
    replay_segment_bytes=64 << 10,
    all_tails_memory_bytes=200_000,
    cached_blocks_bytes=8 << 10,
    index_block_bytes=512,
    index_object_bytes=4 << 10,
    compaction_segment_bytes=16 << 10,
    retry_first_s=0.001,
    retry_max_s=0.001,
)


class CountedStorage(MemoryChunkStorage):
    """Remembers what was asked of the objects of tables; refuses what `refused` names."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.refused = ""
        self.held = None

    def note(self, what, name):
        if name.startswith("tables/"):
            self.calls.append(what)
            if self.refused == what:
                raise UnavailableError(what)

    async def put(self, name, parts):
        self.note("put", name)
        await super().put(name, parts)

    async def read(self, name, position, length):
        self.note("read", name)
        if self.held is not None and name.startswith("tables/"):
            await self.held.wait()
        return await super().read(name, position, length)

    async def delete(self, names):
        self.note("delete", names[0])
        await super().delete(names)

    def table_objects(self):
        return {name for name in self._objects if name.startswith("tables/")}


@pytest.fixture
def small_world(make_world):
    return make_world(table_limits=SMALL, chunks=CountedStorage())


@asynccontextmanager
async def tiering(running):
    """While this lasts everything goes to tier 2 at once."""

    stopped = False

    async def flush_until_stopped():
        while not stopped:
            await running.flush()
            await asyncio.sleep(0.001)

    task = asyncio.ensure_future(flush_until_stopped())
    try:
        yield
    finally:
        stopped = True  # no cancellation: the one of `wait_for` may get lost
        await task


def resident(running, name=TABLE):
    return running.store.table_memory.get(container_of_segment(name, running.world.container_count), name)


async def upkeep_done(running):
    await running.flush()
    await running.until(lambda: (held := resident(running)) is None or (held.task is None and not held.upkeep.due))


def key(number):
    return b"key-%06d" % number


async def fill(running, tables, count, *, batch=10, value=b"v", seed=1, start=0):
    """Write that many keys in no order, and return what they are; the tail never outgrows its bound."""
    numbers = list(range(start, start + count))
    Random(seed).shuffle(numbers)
    known = {}
    for first in range(0, count, batch):
        changes = [(key(number), ANY, value + b"%d" % number) for number in numbers[first : first + batch]]
        reply = await tables.put(*changes)
        assert isinstance(reply, wire.TableEntriesUpdated), reply
        known.update((each, (version, text)) for (each, _, text), version in zip(changes, reply.versions, strict=True))
        table = resident(running).table
        assert table.memory_bytes <= SMALL.tail_memory_bytes + 2 * batch * 400
    return known


def test_a_table_of_many_more_keys_than_memory_holds(small_world, run):
    async def scenario():
        async with small_world.running(graceful=False) as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            async with tiering(running):
                known = await fill(running, tables, 1500)
            await upkeep_done(running)
            runs = resident(running).table.runs
            assert 1 <= len(runs) <= 6
            assert any(len(each) > 1 for each in runs)
            assert len(small_world.chunks.table_objects()) == sum(map(len, runs))
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            sample = Random(2).sample(sorted(known), 40)
            assert await tables.get(*sample, b"missing") == [(each, *known[each]) for each in sample] + [
                (b"missing", NONE, b"")
            ]
            table = resident(running).table
            assert table.memory_bytes <= SMALL.tail_memory_bytes
            assert await tables.pages(100) == [(each, *known[each]) for each in sorted(known)]
            assert await tables.deltas(100) == known
            assert (await tables.info()).entry_count >= len(known)
            assert running.store.table_memory.index._blocks.weight <= SMALL.cached_blocks_bytes
            first, last = key(700), key(705)
            ranged = await tables.client.call(wire.ReadTableKeys(8, TABLE, "", 10, b"", b"", first, last))
            assert [each.key for each in ranged.keys] == [key(number) for number in range(700, 706)]

    run(scenario())


def test_conditions_on_keys_that_only_the_index_knows(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            async with tiering(running):
                known = await fill(running, tables, 300)
                old = [each for each in known if resident(running).table.peek(each) is None]
                assert len(old) > 200
                version = known[old[0]][0]
                assert await tables.put((old[0], version + 1, b"x")) == wire.TableKeyBadVersion(3, TABLE)
                assert await tables.put((old[0], NONE, b"x")) == wire.TableKeyBadVersion(3, TABLE)
                assert await tables.put((b"nothing", 5, b"x")) == wire.TableKeyDoesNotExist(3, TABLE)
                assert isinstance(await tables.put((old[0], version, b"x")), wire.TableEntriesUpdated)
                assert await tables.remove((old[1], known[old[1]][0])) == wire.TableKeysRemoved(4, TABLE)
                assert await tables.remove((old[2], ANY)) == wire.TableKeysRemoved(4, TABLE)
                assert await tables.values(old[0], old[1], old[2], old[3]) == [b"x", b"", b"", known[old[3]][1]]
                for gone in old[1:3]:
                    del known[gone]
                known |= await fill(running, tables, 60, start=1000)  # the removals go to the index too
                await upkeep_done(running)
                assert resident(running).table.peek(old[1]) is None
                assert await tables.values(old[1], old[2]) == [b"", b""]
                assert [each for each, _, _ in await tables.pages(50)] == sorted(known)

    run(scenario())


def test_a_look_up_costs_a_read_for_each_run_and_none_the_second_time(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            async with tiering(running):
                known = await fill(running, tables, 1000)
            await upkeep_done(running)
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.get(b"warm")  # the table itself, and the sparse indexes where this key would be
            held = resident(running).table
            old = next(each for each in sorted(known) if held.peek(each) is None)
            calls = small_world.chunks.calls
            calls.clear()
            await tables.get(old)
            assert calls.count("read") <= 2 * len(held.runs)
            calls.clear()
            await tables.get(old)
            await tables.get(old)
            assert calls == []

    run(scenario())


def test_small_tables_have_no_index_objects_however_often_they_change(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            versions = dict.fromkeys([b"a", b"b", b"c"], NONE)
            async with tiering(running):
                for number in range(400):
                    each = b"abc"[number % 3 : number % 3 + 1]
                    reply = await tables.put((each, versions[each], b"%0200d" % number))
                    (versions[each],) = reply.versions
            await upkeep_done(running)
            info = await tables.info()
            assert info.entry_count == 3
            assert info.start_offset > 0
            assert info.length - info.start_offset <= 2 * SMALL.compaction_segment_bytes
            assert small_world.chunks.calls == []
            assert {each: found for each, found, _ in await tables.pages(2)} == versions

    run(scenario())


def test_compaction_keeps_versions_and_tells_readers_of_deltas_to_start_anew(small_world, run):
    async def scenario():
        async with small_world.running(graceful=False) as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            (version,) = (await tables.put((b"kept", ANY, b"forever"))).versions
            middle = (await tables.delta(0, 10)).last_position
            assert not (await tables.delta(0, 10)).should_clear
            for number in range(200):
                await tables.put((b"busy", ANY, b"%0200d" % number))
            await upkeep_done(running)
            await upkeep_done(running)
            info = await tables.info()
            assert info.start_offset > middle
            assert await tables.get(b"kept") == [(b"kept", version, b"forever")]
            for position in (0, middle):
                page = await tables.delta(position, 10)
                assert page.should_clear
                assert {entry.key for entry in page.entries} == {b"kept", b"busy"}
            assert not (await tables.delta(info.start_offset, 10)).should_clear
            assert isinstance(await tables.put((b"kept", version, b"changed")), wire.TableEntriesUpdated)
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            assert await tables.values(b"kept", b"busy") == [b"changed", b"%0200d" % 199]

    run(scenario())


def test_a_head_goes_only_when_tier_2_has_what_it_was_found_dead_for(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            await tables.put((b"busy", ANY, b"old"), (b"kept", ANY, b"old"))
            await running.flush()
            for number in range(200):
                await tables.put((b"busy", ANY, b"%0200d" % number))
            await running.until(lambda: resident(running).task is None)
            held = resident(running)
            assert held.upkeep._truncations
            assert (await tables.info()).start_offset == 0
            await upkeep_done(running)
            assert (await tables.info()).start_offset > 0

    run(scenario())


@pytest.mark.parametrize("refused", ["put", "read", "delete"])
def test_index_objects_that_cannot_be_written_or_read_for_a_while(small_world, run, refused):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            async with tiering(running):
                known = await fill(running, tables, 100)
                await upkeep_done(running)
                small_world.chunks.refused = refused
                task = asyncio.ensure_future(fill(running, tables, 300, seed=2))
                await running.until(lambda: refused in small_world.chunks.calls or task.done())
                await asyncio.sleep(0.01)
                small_world.chunks.refused = ""
                known |= await task
                await upkeep_done(running)
                assert await tables.pages(100) == [(each, *known[each]) for each in sorted(known)]

    run(scenario())


def test_removed_tables_leave_nothing_behind_and_a_new_one_of_the_name_is_empty(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            client = await running.connect()
            tables = TableClient(client, TABLE)
            await tables.create()
            async with tiering(running):
                await fill(running, tables, 300)
                assert small_world.chunks.table_objects()
                reply = await client.call(wire.DeleteTableSegment(2, TABLE, True))
                assert reply == wire.TableSegmentNotEmpty(2, TABLE)
                assert await client.call(wire.DeleteTableSegment(2, TABLE, False)) == wire.SegmentDeleted(2, TABLE)
                assert not small_world.chunks.table_objects()
                await tables.create()
                assert small_world.metadata.query(f"chunks/{TABLE}", limit=9).records == []
                assert await tables.pages(10) == []
                assert await tables.values(key(5)) == [b""]
                known = await fill(running, tables, 200, value=b"new")
                await upkeep_done(running)
                assert await tables.pages(64) == [(each, *known[each]) for each in sorted(known)]

    run(scenario())


def test_objects_that_a_crash_left_are_removed_with_the_next_look(small_world, run):
    async def scenario():
        async with small_world.running(graceful=False) as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            async with tiering(running):
                known = await fill(running, tables, 200)
            await upkeep_done(running)
            record = resident(running).table.record
            await resident(running).upkeep._store.put(record, [b"never named"])
            named = {each.name for each_run in record.index.runs for each in each_run}
            assert len(small_world.chunks.table_objects()) == len(named) + 1
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            some = next(iter(known))
            assert await tables.values(some) == [known[some][1]]
            assert small_world.chunks.table_objects() == named

    run(scenario())


def test_tables_that_nobody_uses_leave_memory_when_all_take_too_much(small_world, run):
    async def scenario():
        names = [f"scope/_tables/{number}.#epoch.0" for number in range(60)]
        async with small_world.running() as running:
            client = await running.connect()
            for name in names:
                tables = TableClient(client, name)
                await tables.create()
                await tables.put(*((key(number), ANY, name.encode()) for number in range(10)))
                assert running.store.table_memory.used_bytes <= SMALL.all_tails_memory_bytes
            assert len(running.store.table_memory._residents) < len(names)
            for name in names:
                assert await TableClient(client, name).values(key(3)) == [name.encode()]
                assert running.store.table_memory.used_bytes <= SMALL.all_tails_memory_bytes

    run(scenario())


def test_a_damaged_index_object_is_an_error_and_no_answer(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            client = await running.connect()
            tables = TableClient(client, TABLE)
            await tables.create()
            async with tiering(running):
                known = await fill(running, tables, 200)
            await upkeep_done(running)
            held = resident(running).table
            old = next(each for each in sorted(known) if held.peek(each) is None)
            running.store.table_memory.index._blocks._values.clear()
            running.store.table_memory.index._sparse._values.clear()
            for name in small_world.chunks.table_objects():
                stored = small_world.chunks._objects[name]
                small_world.chunks._objects[name] = type(stored)(b"\0" * len(stored.data), stored.last_modified_ms)
            reply = await client.call(wire.ReadTable(5, TABLE, "", (wire.TableKey(old),)))
            assert isinstance(reply, wire.ErrorMessage)
            await tables.put((b"fresh", ANY, b"1"))
            assert await tables.values(b"fresh") == [b"1"]

    run(scenario())


def test_a_table_whose_index_is_lost_can_be_removed(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            client = await running.connect()
            tables = TableClient(client, TABLE)
            await tables.create()
            async with tiering(running):
                await fill(running, tables, 200)
            await upkeep_done(running)
            record = small_world.metadata.get(Key(f"chunks/{TABLE}", "table-index"))
            small_world.metadata.write(Replace(record.key, {**record.body, "runs": 5}, record.version))
            running.store.table_memory.drop(container_of_segment(TABLE, small_world.container_count), TABLE)
            assert isinstance(await client.call(wire.ReadTableKeys(3, TABLE, "", 5)), wire.ErrorMessage)
            assert isinstance(await client.call(wire.DeleteTableSegment(3, TABLE, True)), wire.ErrorMessage)
            assert await client.call(wire.DeleteTableSegment(3, TABLE, False)) == wire.SegmentDeleted(3, TABLE)
            assert not small_world.chunks.table_objects()
            assert small_world.metadata.get(record.key) is None

    run(scenario())


def test_a_slow_look_up_keeps_nobody_waiting_but_later_updates_of_its_table(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            client, other = await running.connect(), await running.connect()
            tables = TableClient(client, TABLE)
            await tables.create()
            async with tiering(running):
                known = await fill(running, tables, 300)
            await upkeep_done(running)
            old = next(each for each in sorted(known) if resident(running).table.peek(each) is None)
            await tables.put((b"fresh", ANY, b"1"))
            running.store.table_memory.index._blocks._values.clear()
            held = asyncio.Event()
            small_world.chunks.held = held
            client.send(wire.ReadTable(20, TABLE, "", (wire.TableKey(old),)))
            client.send(wire.UpdateTableEntries(21, TABLE, "", (wire.TableEntry(old, NONE, b"x"),)))
            client.send(wire.UpdateTableEntries(22, TABLE, "", (wire.TableEntry(b"new", NONE, b"x"),)))
            quick = TableClient(other, TABLE)
            assert await quick.values(b"fresh") == [b"1"]
            elsewhere = TableClient(other, "scope/_tables/5.#epoch.0")
            await elsewhere.create()
            assert isinstance(await elsewhere.put((b"a", NONE, b"1")), wire.TableEntriesUpdated)
            held.set()
            replies = {(reply := await client.receive()).request_id: reply for _ in range(3)}
            assert [bytes(entry.value) for entry in replies[20].entries] == [known[old][1]]
            assert replies[21] == wire.TableKeyBadVersion(21, TABLE)
            assert isinstance(replies[22], wire.TableEntriesUpdated)

    run(scenario())


def test_a_small_table_costs_one_read_of_metadata_when_it_comes_into_memory(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            asked = []
            get = small_world.metadata.get
            small_world.metadata.get = lambda key: asked.append(key.sort) or get(key)
            try:
                for number in range(20):
                    await tables.put((b"a", ANY, b"%d" % number))
                    await tables.values(b"a", b"b")
                    await tables.pages(5)
            finally:
                del small_world.metadata.get
            assert asked == ["table-index"]
            assert small_world.chunks.calls == []

    run(scenario())


def test_batches_under_way_take_no_more_memory_than_the_cache_has(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            pool = running.store.pool
            frame = wire.encode(wire.UpdateTableEntries(3, TABLE, "", (wire.TableEntry(b"k", ANY, bytes(900_000)),)))
            clients = [await running.connect() for _ in range(12)]
            for each in clients:
                each.send_raw(frame[:-1])  # all but its end: what came must be kept somewhere
            await running.until(lambda: pool.waiting > 0)
            assert pool.unstored_bytes <= pool.capacity_bytes
            for each in clients:
                each.close()
            await running.until(lambda: not pool.waiting and pool.unstored_bytes == 0)
            assert isinstance(await tables.put((b"k", ANY, b"v")), wire.TableEntriesUpdated)

    run(scenario())


def test_a_full_table_does_not_wait_for_the_time_of_the_next_flush(small_world, run):
    async def scenario():
        async with small_world.running() as running:
            tables = TableClient(await running.connect(), TABLE)
            await tables.create()
            known = await fill(running, tables, 300)
            assert await tables.pages(100) == [(each, *known[each]) for each in sorted(known)]
            table = resident(running).table
            assert table.runs
            assert table.segment.storage_length < table.segment.length

    run(scenario())
