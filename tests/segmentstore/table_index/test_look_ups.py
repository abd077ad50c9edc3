"""Tables of more keys than memory holds: what they answer, and the requests of tier 2 that it takes."""

from __future__ import annotations

from random import Random

import pytest
from small_tables import ANY, NONE, SMALL, TABLE, fill, key, resident, tiering, upkeep_done
from store_world import World
from table_client import TableClient

from headrace import wire

pytestmark = pytest.mark.anyio


async def test_a_table_of_many_more_keys_than_memory_holds(small_world: World):
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


async def test_conditions_on_keys_that_only_the_index_knows(small_world: World):
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


async def test_look_up_reads_each_run_once_and_then_uses_the_cache(small_world: World):
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


async def test_loading_a_small_table_costs_one_metadata_read(small_world: World):
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
