"""A store is closed while a request for a table waits for the table's index."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from small_tables import TABLE, container_of_table, fill, resident, tiering, upkeep_done
from store_world import WAIT_S, World
from table_client import TableClient

from headrace import wire

pytestmark = pytest.mark.anyio


async def test_late_update_does_not_stay_in_the_log(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """Else the next owner would need this volume, which goes with the task."""
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 300)
            await upkeep_done(running)
        old = next(each for each in sorted(known) if resident(running).table.peek(each) is None)
        running.store.table_memory.index._blocks._values.clear()
        small_world.chunks.held, small_world.chunks.calls = asyncio.Event(), []
        entry = wire.TableEntry(old, known[old][0], b"late")
        updating = asyncio.ensure_future(tables.client.call(wire.UpdateTableEntries(3, TABLE, "", (entry,))))
        await running.until(lambda: "read" in small_world.chunks.calls)
        writer = running.store.owned[container_of_table(small_world)].writer
        checkpoint, drain, outcomes = writer.checkpoint, writer.drain, []

        async def checkpoint_after_the_update() -> None:
            """All bytes are flushed here, and the last snapshot is not written yet."""
            small_world.chunks.held.set()
            await asyncio.wait([updating], timeout=WAIT_S)
            await checkpoint()

        async def drained() -> bool:
            outcomes.append(await drain())
            return outcomes[-1]

        monkeypatch.setattr(writer, "checkpoint", checkpoint_after_the_update)
        monkeypatch.setattr(writer, "drain", drained)
        await running.store.close(WAIT_S)
        assert isinstance(await updating, wire.WrongHost)
        assert outcomes == [True]


async def test_close_ends_the_upkeep_also_without_time_to_flush(small_world: World):
    """Otherwise it would write to tier 2 behind the end of the store, or be pending when its event loop is closed."""
    before = asyncio.all_tasks()
    async with small_world.running(graceful=False) as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        small_world.chunks.refused = "put"
        async with tiering(running):
            filling = asyncio.ensure_future(fill(running, tables, 300))
            await running.until(lambda: small_world.chunks.calls.count("put") > 1)
        filling.cancel()
        with suppress(asyncio.CancelledError, TimeoutError):  # its update may have waited for too long already
            await filling
        upkeep = resident(running).task
        assert upkeep is not None
    assert upkeep.done()
    assert asyncio.all_tasks() == before
