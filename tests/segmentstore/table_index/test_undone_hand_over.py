"""A hand-over is undone while a table is in use, or while its index is written."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from small_tables import (
    ANY,
    TABLE,
    container_of_table,
    evict_table,
    fill,
    filled_table,
    hold_first,
    hold_index_reads,
    key,
    read_of,
    resident,
    tiering,
    undone_hand_over,
    upkeep_done,
)
from store_world import WAIT_S, World
from table_client import TableClient

from headrace import wire
from headrace.model.table_indexes import TABLE_INDEX_SORT
from headrace.segmentstore.tables import table_requests
from headrace.segmentstore.tables.table import Table
from headrace.segmentstore.tables.table_requests import Batch

pytestmark = pytest.mark.anyio


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
        tables, others, known = await filled_table(running)
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


async def test_removal_of_missing_keys_is_tried_again(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """It changes nothing, but the table that is loaded since may have got the keys."""
    check = table_requests._check

    async def check_and_stop(table: Table, batch: Batch) -> bool:
        changes_nothing = await check(table, batch)
        owned = running.store.owned[container_of_table(small_world)]
        await owned.tables.stop()
        owned.tables.resume()
        return changes_nothing

    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        with monkeypatch.context() as patch:
            patch.setattr(table_requests, "_check", check_and_stop)
            assert isinstance(await tables.remove((key(0), ANY)), wire.WrongHost)
        assert isinstance(await tables.remove((key(0), ANY)), wire.TableKeysRemoved)


async def test_read_that_lost_its_index_is_tried_again(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The table that was loaded meanwhile may have replaced the index. It is not damaged."""
    async with small_world.running() as running:
        _, others, _ = await filled_table(running)
        evicted = resident(running).table
        reads_go_on = hold_index_reads(running)
        reading = asyncio.ensure_future(others.client.call(read_of(0)))
        await running.until(lambda: evicted.users > 0)
        await undone_hand_over(running, monkeypatch)
        for name in small_world.chunks.table_objects():
            del small_world.chunks._objects[name]
        reads_go_on.set()
        assert isinstance(await reading, wire.WrongHost)


async def test_table_is_not_loaded_twice_at_the_same_time(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The load that began before the hand-over would remove objects that the other table is writing."""
    async with small_world.running() as running:
        tables, others, known = await filled_table(running)
        evict_table(running)
        lists, goes_on = hold_first(small_world.chunks, "list", monkeypatch)
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
            assert isinstance(await tables.client.call(read_of(0)), wire.WrongHost)
        assert isinstance(await tables.put((key(0), ANY, b"new")), wire.TableEntriesUpdated)
        assert await tables.values(key(0)) == [b"new"]
