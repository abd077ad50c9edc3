"""Removals of a table that are in progress when others use it, or when a hand-over of its container is undone."""

from __future__ import annotations

import asyncio

import pytest
from small_tables import (
    ANY,
    TABLE,
    container_of_table,
    filled_table,
    forget_index,
    hold_first,
    hold_index_reads,
    key,
    read_of,
    resident,
    undone_hand_over,
)
from store_world import RunningStore, World
from table_client import TableClient

from headrace import wire
from headrace.model.errors import CorruptError, UnavailableError
from headrace.segmentstore.tables.upkeep import TableUpkeep

pytestmark = pytest.mark.anyio

REMOVE = wire.DeleteTableSegment(2, TABLE, False)
REMOVE_EMPTY = wire.DeleteTableSegment(2, TABLE, True)


async def unavailable(_name: str) -> None:
    raise UnavailableError("not now")


def refuse_removals(running: RunningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removals of segments fail, when the index of the table is removed already."""
    monkeypatch.setattr(running.store.owned[container_of_table(running.world)].container, "delete", unavailable)


async def test_undone_hand_over_does_not_load_a_table_being_removed(
    small_world: World, monkeypatch: pytest.MonkeyPatch
):
    """The removal would remove the objects that the index of the loaded table names."""
    async with small_world.running() as running:
        tables, others, known = await filled_table(running)
        begun, goes_on = hold_first(small_world.chunks, "delete", monkeypatch)
        removing = asyncio.ensure_future(others.client.call(REMOVE))
        await begun.wait()
        await undone_hand_over(running, monkeypatch)
        assert isinstance(await tables.client.call(read_of(5)), wire.WrongHost)
        refuse_removals(running, monkeypatch)
        goes_on.set()
        assert isinstance(await removing, wire.WrongHost)
        assert await tables.values(*known) == [text for _, text in known.values()]


async def test_removal_that_waited_for_an_evicted_table_is_refused(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """It would remove the index of the table that was loaded meanwhile, and that is in use."""
    async with small_world.running() as running:
        tables, others, known = await filled_table(running)
        evicted = resident(running).table
        async with evicted.order:  # as an update that reads from tier 2
            removing = asyncio.ensure_future(others.client.call(REMOVE))
            await running.until(lambda: evicted.users > 0)
            await undone_hand_over(running, monkeypatch)
            assert await tables.values(*known) == [text for _, text in known.values()]
            refuse_removals(running, monkeypatch)
        assert isinstance(await removing, wire.WrongHost)
        forget_index(running)
        assert await tables.values(*known) == [text for _, text in known.values()]


async def test_removal_that_walked_an_evicted_table_is_refused(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The table that was loaded meanwhile may have entries."""
    async with small_world.running() as running:
        tables, others, _ = await filled_table(running)
        for first in range(0, 200, 10):
            await tables.remove(*((key(number), ANY) for number in range(first, first + 10)))
        evicted = resident(running).table
        assert evicted.runs
        reads_go_on = hold_index_reads(running)
        removing = asyncio.ensure_future(others.client.call(REMOVE_EMPTY))
        await running.until(lambda: evicted.users > 0)
        await undone_hand_over(running, monkeypatch)
        assert isinstance(await tables.put((key(0), ANY, b"new")), wire.TableEntriesUpdated)
        reads_go_on.set()
        assert isinstance(await removing, wire.WrongHost)
        assert await tables.values(key(0)) == [b"new"]


async def test_read_whose_index_is_removed_is_tried_again(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The table is not damaged: it is about to be removed, or to be loaded from its whole segment."""
    async with small_world.running() as running:
        tables, others, known = await filled_table(running)
        reads_go_on = hold_index_reads(running)
        small_world.chunks.calls.clear()
        reading = asyncio.ensure_future(others.client.call(read_of(5)))
        await running.until(lambda: "read" in small_world.chunks.calls)
        refuse_removals(running, monkeypatch)
        assert isinstance(await tables.client.call(REMOVE), wire.WrongHost)
        assert not small_world.chunks.table_objects()
        reads_go_on.set()
        assert isinstance(await reading, wire.WrongHost)
        assert await tables.values(key(5)) == [known[key(5)][1]]


async def test_failing_upkeep_lets_no_second_removal_begin(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """A damaged table is removed by its name: what goes on last would remove a new table of this name."""
    fails = asyncio.Event()

    async def fail(_upkeep: TableUpkeep) -> bool:
        await fails.wait()
        raise CorruptError("a damaged index")

    async with small_world.running() as running:
        tables, others = [TableClient(await running.connect(), TABLE) for _ in range(2)]
        await tables.create()
        monkeypatch.setattr(TableUpkeep, "run_step", fail)
        await tables.put(*((key(number), ANY, b"v") for number in range(100)))
        await running.flush()
        await running.until(lambda: resident(running).task is not None)
        begun, goes_on = hold_first(small_world.chunks, "list", monkeypatch)
        removing = asyncio.ensure_future(others.client.call(REMOVE))
        await running.until(lambda: resident(running).table.is_being_removed)
        fails.set()
        await begun.wait()
        assert isinstance(await tables.client.call(REMOVE), wire.WrongHost)
        goes_on.set()
        assert isinstance(await removing, wire.SegmentDeleted)


async def test_upkeep_cancelled_before_its_first_step_holds_no_table(
    small_world: World, monkeypatch: pytest.MonkeyPatch
):
    """A removal has begun meanwhile. If it fails, the table would stay as it is, and never be loaded again."""
    async with small_world.running() as running:
        tables, _, known = await filled_table(running)
        held, store = resident(running), running.store.owned[container_of_table(small_world)].tables
        with monkeypatch.context() as patch:
            patch.setattr(TableUpkeep, "due", True)
            store._start_upkeep(held)
        held.table.begin_removal()
        await store.stop()
        store.resume()
        assert await tables.values(*known) == [text for _, text in known.values()]
