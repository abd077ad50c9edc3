"""A hand-over is undone while a write of a table's index record is on its way."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from small_tables import (
    ANY,
    TABLE,
    container_of_table,
    fill,
    hold_index_reads,
    key,
    resident,
    tiering,
    undone_hand_over,
    upkeep_done,
)
from store_world import WAIT_S, World
from table_client import TableClient

from headrace import wire
from headrace.model.table_indexes import TABLE_INDEX_SORT

pytestmark = pytest.mark.anyio

READ = wire.ReadTable(5, TABLE, "", (wire.TableKey(key(0)),))


class LateWrite:
    """Holds the first write of an index record until `arrives`, or until right before the next one."""

    def __init__(self, world: World) -> None:
        self.begun, self.arrives, self._arrived = threading.Event(), threading.Event(), threading.Event()
        self._write = world.metadata.write
        world.metadata.write = self  # type: ignore[method-assign, assignment]

    def __call__(self, *writes: Any) -> None:
        if not any(each.key.sort == TABLE_INDEX_SORT for each in writes):
            self._write(*writes)
        elif not self.begun.is_set():
            self.begun.set()
            self.arrives.wait(WAIT_S)
            self._write(*writes)
            self._arrived.set()
        else:
            self.arrives.set()
            self._arrived.wait(WAIT_S)
            self._write(*writes)


async def test_index_write_that_arrives_late_loses_no_entry(small_world: World, monkeypatch):
    """A table that is loaded before it would remove the objects that it names."""
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 200)
            await upkeep_done(running)
            late = LateWrite(small_world)
            filling = asyncio.ensure_future(fill(running, tables, 200, seed=2))
            await running.until(late.begun.is_set)
            await undone_hand_over(running, monkeypatch)
            await asyncio.gather(filling, return_exceptions=True)  # an update may have been refused
            some = next(iter(known))
            reading = asyncio.ensure_future(tables.values(some))
            await asyncio.wait([reading], timeout=0.1)
            late.arrives.set()
            assert await reading == [known[some][1]]
            known |= await fill(running, tables, 200, seed=3)
            await upkeep_done(running)
            assert resident(running).table.failure is None
            assert await tables.pages(100) == [(each, *known[each]) for each in sorted(known)]


async def test_update_that_looked_a_key_up_meanwhile_is_refused(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The table that was loaded since would not have it, although it would be acknowledged."""
    async with small_world.running() as running:
        tables, others = [TableClient(await running.connect(), TABLE) for _ in range(2)]
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 200)
            await upkeep_done(running)
        evicted, version = resident(running).table, known[key(5)][0]
        reads_go_on = hold_index_reads(running)
        updating = asyncio.ensure_future(others.put((key(5), version, b"new")))
        await running.until(lambda: evicted.users > 0)
        await undone_hand_over(running, monkeypatch)
        await tables.info()  # loads the table
        reads_go_on.set()
        assert isinstance(await updating, wire.WrongHost)
        assert await tables.values(key(5)) == [known[key(5)][1]]
        assert isinstance(await others.put((key(5), version, b"new")), wire.TableEntriesUpdated)
        assert await tables.values(key(5)) == [b"new"]


async def test_read_that_lost_its_index_is_tried_again(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The table that was loaded meanwhile may have replaced the index. It is not damaged."""
    async with small_world.running() as running:
        tables, others = [TableClient(await running.connect(), TABLE) for _ in range(2)]
        await tables.create()
        async with tiering(running):
            await fill(running, tables, 200)
            await upkeep_done(running)
        evicted = resident(running).table
        reads_go_on = hold_index_reads(running)
        reading = asyncio.ensure_future(others.client.call(READ))
        await running.until(lambda: evicted.users > 0)
        await undone_hand_over(running, monkeypatch)
        for name in small_world.chunks.table_objects():
            del small_world.chunks._objects[name]
        reads_go_on.set()
        assert isinstance(await reading, wire.WrongHost)


async def test_table_is_not_loaded_twice_at_the_same_time(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The load that began before the hand-over would remove objects that the other table is writing."""
    listed, lists, goes_on = small_world.chunks.list, asyncio.Event(), asyncio.Event()

    async def wait_and_list(prefix: str, **page: Any) -> Any:
        if prefix.startswith("tables/") and not lists.is_set():
            lists.set()
            await goes_on.wait()
        return await listed(prefix, **page)

    async with small_world.running() as running:
        tables, others = [TableClient(await running.connect(), TABLE) for _ in range(2)]
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 200)
            await upkeep_done(running)
        running.store.table_memory.drop(container_of_table(small_world), TABLE)
        monkeypatch.setattr(small_world.chunks, "list", wait_and_list)
        reading = asyncio.ensure_future(others.values(key(5)))
        await lists.wait()
        await undone_hand_over(running, monkeypatch)
        assert isinstance(await tables.put((key(0), ANY, b"new")), wire.WrongHost)
        goes_on.set()
        assert await reading == [known[key(5)][1]]
        assert isinstance(await tables.put((key(0), ANY, b"new")), wire.TableEntriesUpdated)


async def test_overlapping_reads_do_not_keep_a_table_of_the_hand_over(small_world: World):
    """A table that is loaded during a hand-over rejects updates; afterwards it must be loaded again."""
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        await fill(running, tables, 10)
        owned = running.store.owned[container_of_table(small_world)]
        await owned.tables.stop()
        async with owned.tables.use(TABLE):
            owned.tables.resume()
            assert isinstance(await tables.client.call(READ), wire.WrongHost)
        assert isinstance(await tables.put((key(0), ANY, b"new")), wire.TableEntriesUpdated)
        assert await tables.values(key(0)) == [b"new"]
