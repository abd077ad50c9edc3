"""Writes of a table's index record that DynamoDB carries out late, without an answer."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest
from late_writes import LateWrites
from small_tables import (
    ANY,
    TABLE,
    container_of_table,
    fill,
    key,
    read_of,
    resident,
    tiering,
    undone_hand_over,
    upkeep_done,
)
from store_world import WAIT_S, RunningStore, World
from table_client import TableClient

from headrace import wire
from headrace.model.chunks import chunk_partition
from headrace.model.table_indexes import TABLE_INDEX_SORT
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, Create, Delete, Key, Replace, WriteConflictError

pytestmark = pytest.mark.anyio

RECORD = Key(chunk_partition(TABLE), TABLE_INDEX_SORT)
REMOVED = wire.SegmentDeleted(2, TABLE)


def tier_at_once(running: RunningStore) -> None:
    """Without the clock, as `tiering` would end what late writes have time for."""
    running.store.owned[container_of_table(running.world)].writer._draining = True


async def written_late(
    running: RunningStore, tables: TableClient, kind: type[Create | Replace], monkeypatch: pytest.MonkeyPatch
) -> LateWrites:
    """A write of the record that has no answer, and no retry any more: the next request loads the table."""
    tier_at_once(running)
    late = LateWrites(running.world, kind, RECORD.__eq__)
    filling = asyncio.ensure_future(fill(running, tables, 200, start=200))
    await running.until(lambda: bool(late.kept))
    await undone_hand_over(running, monkeypatch)
    await asyncio.gather(filling, return_exceptions=True)  # an update may have been refused
    return late


async def updated_until_refused(tables: TableClient) -> object:
    """The first reply that is no success."""
    for number in itertools.count(1_000):
        reply = await tables.put((key(number), ANY, b"new"))
        if not isinstance(reply, wire.TableEntriesUpdated):
            return reply
    raise AssertionError


async def remove(tables: TableClient) -> object:
    return await tables.client.call(wire.DeleteTableSegment(2, TABLE, False))


async def test_late_index_of_a_loaded_table_loses_no_entry(small_world: World, monkeypatch: pytest.MonkeyPatch):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 200)
            await upkeep_done(running)
        late = await written_late(running, tables, Replace, monkeypatch)
        assert await tables.values(key(5)) == [known[key(5)][1]]
        late.take_effect()
        late.answer_again()
        await upkeep_done(running)
        assert await tables.values(*known) == [text for _, text in known.values()]
        async with tiering(running):
            (version,) = (await tables.put((key(5), ANY, b"new"))).versions
            assert version > known[key(5)][0]
            await upkeep_done(running)
        assert await tables.values(key(5), key(6)) == [b"new", known[key(6)][1]]
        assert resident(running).table.failure is None


async def test_updates_after_a_late_index_are_only_refused_for_now(small_world: World, monkeypatch: pytest.MonkeyPatch):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        late = await written_late(running, tables, Create, monkeypatch)
        await tables.values(key(0))  # loads the table
        waiting = asyncio.ensure_future(updated_until_refused(tables))
        await running.until(lambda: not resident(running).table._room.is_set())
        late.take_effect()
        late.answer_again()
        assert isinstance(await asyncio.wait_for(waiting, WAIT_S), wire.WrongHost)
        replies = [await tables.put((key(number), ANY, b"new")) for number in range(200)]
        assert {type(each) for each in replies} <= {wire.TableEntriesUpdated, wire.WrongHost}
        assert isinstance(replies[-1], wire.TableEntriesUpdated)
        await upkeep_done(running)
        assert await tables.values(key(199)) == [b"new"]


async def test_overlapping_reads_do_not_keep_a_failed_table(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """Else a table that is read all the time would reject updates for ever."""
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        late = await written_late(running, tables, Create, monkeypatch)
        await tables.values(key(0))  # loads the table
        late.take_effect()
        late.answer_again()
        async with running.store.owned[container_of_table(small_world)].tables.use(TABLE) as table:
            await running.until(lambda: table.failure is not None)
            assert isinstance(await tables.put((key(0), ANY, b"new")), wire.WrongHost)
            assert isinstance(await tables.client.call(read_of(0)), wire.WrongHost)
        assert isinstance(await tables.put((key(0), ANY, b"new")), wire.TableEntriesUpdated)


@pytest.mark.parametrize("kind", [Create, Replace, Delete])
async def test_removal_waits_for_late_writes_of_the_index(small_world: World, kind: type[Create | Delete | Replace]):
    """Else the late write would create the record again, or meet that of a new table of this name."""
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        tier_at_once(running)
        if kind is not Create:
            await fill(running, tables, 100)
        late = LateWrites(small_world, kind, RECORD.__eq__)
        changing = asyncio.ensure_future(remove(tables) if kind is Delete else fill(running, tables, 100, start=100))
        await running.until(lambda: bool(late.kept))
        late.answer_again()
        await changing
        assert isinstance(await remove(tables), wire.WrongHost)
        with suppress(WriteConflictError):
            late.take_effect()
        small_world.clock.advance(UNANSWERED_WRITE_S)
        assert await remove(tables) == REMOVED
        assert small_world.metadata.get(RECORD) is None
        assert not small_world.chunks.table_objects()
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 100, value=b"new")
            await upkeep_done(running)
        assert small_world.metadata.get(RECORD) is not None
        assert await tables.pages(64) == [(each, *known[each]) for each in sorted(known)]


async def test_index_that_appears_late_goes_with_its_table(small_world: World, monkeypatch: pytest.MonkeyPatch):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        late = await written_late(running, tables, Create, monkeypatch)
        assert isinstance(await remove(tables), wire.WrongHost)
        late.take_effect()
        small_world.clock.advance(UNANSWERED_WRITE_S)
        assert await remove(tables) == REMOVED
        assert small_world.metadata.get(RECORD) is None
        assert not small_world.chunks.table_objects()
