"""What tables may take of a process: memory of all together, and the time of whom else."""

from __future__ import annotations

import asyncio

import pytest
from small_tables import ANY, NONE, SMALL, TABLE, evict_table, fill, key, resident, tiering, upkeep_done
from store_world import World
from table_client import TableClient

from headrace import wire
from headrace.model.errors import UnavailableError
from headrace.segmentstore.tables.table_store import TableStore
from headrace.segmentstore.tables.upkeep import TableUpkeep

pytestmark = pytest.mark.anyio


async def test_unused_tables_are_evicted_beyond_the_memory_limit(small_world: World):
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


async def test_slow_look_up_delays_only_later_updates_of_its_table(small_world: World):
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


async def test_batches_that_have_not_arrived_take_nothing_of_the_cache(small_world: World):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        pool, memory = running.store.pool, running.listener.receive_memory
        frame = wire.encode(wire.UpdateTableEntries(3, TABLE, "", (wire.TableEntry(b"k", ANY, bytes(900_000)),)))
        clients = [await running.connect() for _ in range(12)]
        for each in clients:
            each.send_raw(frame[:-1])  # all but its end: what came must be kept somewhere
        await running.until(lambda: memory.used_bytes > len(clients) * 900_000)
        assert pool.untiered_bytes == 0
        assert memory.used_bytes <= memory.total_bytes
        assert isinstance(await tables.put((b"j", ANY, b"v")), wire.TableEntriesUpdated)
        for each in clients:
            each.close()
        await running.until(lambda: not memory.used_bytes)
        assert isinstance(await tables.put((b"k", ANY, b"v")), wire.TableEntriesUpdated)


async def test_full_table_is_flushed_before_the_next_interval(small_world: World):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        known = await fill(running, tables, 300)
        assert await tables.pages(100) == [(each, *known[each]) for each in sorted(known)]
        table = resident(running).table
        assert table.runs
        assert table.segment.tiered.length < table.segment.accepted.length


async def test_table_that_is_loaded_again_keeps_its_bound(small_world: World):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        known = await fill(running, tables, 60)
        assert len(resident(running).table.tails) == 2  # no index has any of these keys
        evict_table(running)
        assert await tables.pages(100) == [(each, *known[each]) for each in sorted(known)]
        known |= await fill(running, tables, 60, start=60)
        assert await tables.pages(100) == [(each, *known[each]) for each in sorted(known)]


async def test_update_of_a_full_table_in_tier_2_is_taken(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The table is loaded for it, and nothing is left to flush: no flush starts the upkeep that makes room."""
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        with monkeypatch.context() as patch:
            patch.setattr(TableStore, "_start_upkeep", lambda _tables, _resident: None)
            number = 0
            while number == 0 or resident(running).table.has_room:
                await tables.put((key(number), ANY, b"v"))
                number += 1
            table = resident(running).table
            async with tiering(running):
                await running.until(lambda: table.segment.tiered.length == table.segment.accepted.length)
            evict_table(running)
        assert isinstance(await tables.put((b"new", ANY, b"v")), wire.TableEntriesUpdated)


@pytest.mark.parametrize("is_handed_over", [True, False])
async def test_updates_that_wait_for_room_learn_of_the_end(small_world: World, is_handed_over: bool):
    small_world.container_count = 1
    async with small_world.running(graceful=False) as running:
        client = await running.connect()
        await TableClient(client, TABLE).create()
        small_world.chunks.refused = "put"  # so that the index never has room for what the memory holds
        for number in range(300):
            client.send(wire.UpdateTableEntries(number, TABLE, "", (wire.TableEntry(key(number), ANY, b"v"),)))
        await running.until(lambda: (held := resident(running)) is not None and not held.table._room.is_set())
        replies = [await client.receive()]  # durable before the end of the container
        container = running.store.owner_of(TABLE).container
        if is_handed_over:
            assert await running.store.hand_over(container.container, 60)
        else:
            container.log.fail(UnavailableError("the disk is broken"))
        replies += [await client.receive() for _ in range(299)]
        assert isinstance(replies[0], wire.TableEntriesUpdated)
        assert isinstance(replies[-1], wire.WrongHost)


async def test_compaction_keeps_the_bound_of_a_table(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """It appends keys again while tier 2 does not take them. What a batch adds at once is in the bound of `fill`."""
    sizes, run_step = [], TableUpkeep.run_step

    async def run_and_measure(upkeep: TableUpkeep) -> bool:
        more = await run_step(upkeep)
        sizes.append(upkeep._table.memory_bytes)
        return more

    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 1500)
            await upkeep_done(running)
        monkeypatch.setattr(TableUpkeep, "run_step", run_and_measure)
        table = resident(running).table
        dead = bytes(2000)
        while table.segment.accepted.length <= 3 * table.live_bytes:
            assert isinstance(await tables.put((b"busy", ANY, dead)), wire.TableEntriesUpdated)
        await running.until(lambda: (held := resident(running)) is None or held.task is None)
        while (await tables.info()).start_offset == 0:
            await upkeep_done(running)
        assert max(sizes) <= SMALL.tail_memory_bytes + 2 * 10 * 400
        assert [each for each in await tables.pages(100) if each[0] != b"busy"] == [
            (each, *known[each]) for each in sorted(known)
        ]
