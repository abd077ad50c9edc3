"""Index objects that are refused, left behind, damaged or lost: no wrong answer, and nothing stays for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from late_writes import LateWrites
from small_tables import ANY, TABLE, evict_table, fill, forget_index, key, read_of, resident, tiering, upkeep_done
from store_world import World
from table_client import TableClient

from headrace import wire
from headrace.model.chunks import chunk_partition
from headrace.model.table_indexes import TABLE_INDEX_SORT
from headrace.ports.metadata_store import Delete, Key, Replace

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("refused", ["put", "read", "delete"])
async def test_table_recovers_when_index_objects_are_unavailable(small_world: World, refused):
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


async def test_removed_table_leaves_no_objects_and_new_one_is_empty(small_world: World):
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


async def test_objects_left_by_a_crash_are_removed_at_the_next_load(small_world: World):
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


async def test_no_one_loads_a_table_while_it_is_removed(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """That would remove the objects that its upkeep is writing, and the table would be damaged if it is not removed."""
    written, saves = asyncio.Event(), asyncio.Event()
    put = small_world.chunks.put

    async def put_and_wait(name: str, parts: Any) -> None:
        await put(name, parts)
        if name.startswith("tables/"):
            written.set()
            await saves.wait()

    async with small_world.running() as running:
        tables, others = [TableClient(await running.connect(), TABLE) for _ in range(2)]
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 200)
            await upkeep_done(running)
            monkeypatch.setattr(small_world.chunks, "put", put_and_wait)
            late = LateWrites(small_world, Delete, Key(chunk_partition(TABLE), TABLE_INDEX_SORT).__eq__)
            filling = asyncio.ensure_future(fill(running, tables, 200, start=200))
            await written.wait()
            removing = asyncio.ensure_future(others.client.call(wire.DeleteTableSegment(2, TABLE, False)))
            await asyncio.gather(filling, return_exceptions=True)  # an update is refused when the removal begins
            assert isinstance(await tables.client.call(read_of(5)), wire.WrongHost)
            saves.set()
            assert isinstance(await removing, wire.WrongHost)
            late.answer_again()
            assert await tables.values(*known) == [text for _, text in known.values()]


async def test_objects_without_a_record_go_with_their_table(small_world: World):
    """A crash in a removal leaves them when the record has been removed, and so does one before the first record."""
    async with small_world.running(graceful=False) as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        await tables.put((b"one", ANY, b"1"))
        await resident(running).upkeep._store.put(resident(running).table.record, [b"never named"])
        assert small_world.chunks.table_objects()
    async with small_world.running() as running:
        client = await running.connect()
        assert await client.call(wire.DeleteTableSegment(2, TABLE, False)) == wire.SegmentDeleted(2, TABLE)
        assert not small_world.chunks.table_objects()


async def test_a_damaged_index_object_is_an_error_and_no_answer(small_world: World):
    async with small_world.running() as running:
        client = await running.connect()
        tables = TableClient(client, TABLE)
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 200)
        await upkeep_done(running)
        held = resident(running).table
        old = next(each for each in sorted(known) if held.peek(each) is None)
        forget_index(running)
        for name in small_world.chunks.table_objects():
            stored = small_world.chunks._objects[name]
            small_world.chunks._objects[name] = type(stored)(b"\0" * len(stored.data), stored.last_modified_ms)
        reply = await client.call(wire.ReadTable(5, TABLE, "", (wire.TableKey(old),)))
        assert isinstance(reply, wire.ErrorMessage)
        await tables.put((b"fresh", ANY, b"1"))
        assert await tables.values(b"fresh") == [b"1"]


async def test_a_table_whose_index_is_lost_can_be_removed(small_world: World):
    async with small_world.running() as running:
        client = await running.connect()
        tables = TableClient(client, TABLE)
        await tables.create()
        async with tiering(running):
            await fill(running, tables, 200)
        await upkeep_done(running)
        record = small_world.metadata.get(Key(f"chunks/{TABLE}", "table-index"))
        small_world.metadata.write(Replace(record.key, {**record.body, "runs": 5}, record.version))
        evict_table(running)
        assert isinstance(await client.call(wire.ReadTableKeys(3, TABLE, "", 5)), wire.ErrorMessage)
        assert isinstance(await client.call(wire.DeleteTableSegment(3, TABLE, True)), wire.ErrorMessage)
        assert await client.call(wire.DeleteTableSegment(3, TABLE, False)) == wire.SegmentDeleted(3, TABLE)
        assert not small_world.chunks.table_objects()
        assert small_world.metadata.get(record.key) is None
