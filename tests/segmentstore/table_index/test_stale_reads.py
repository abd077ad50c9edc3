"""Requests that are reading a table when it leaves memory: what they find may not be the table any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from small_tables import TABLE, fill, hold_index_reads, key, resident, tiering, upkeep_done
from store_world import World
from table_client import TableClient

from headrace import wire

pytestmark = pytest.mark.anyio

READ = wire.ReadTable(5, TABLE, "", (wire.TableKey(key(0)),))
READ_KEYS = wire.ReadTableKeys(5, TABLE, "", 1, b"", b"", b"", b"")
READ_ENTRIES = wire.ReadTableEntries(5, TABLE, "", 1, b"")


@pytest.mark.parametrize("command", [READ, READ_KEYS, READ_ENTRIES])
async def test_reads_find_what_a_failed_removal_leaves(small_world: World, command: Any):
    """It has removed the record of the index. The segment still has the entries."""
    async with small_world.running() as running:
        tables, others = [TableClient(await running.connect(), TABLE) for _ in range(2)]
        await tables.create()
        async with tiering(running):
            known = await fill(running, tables, 200)
            await upkeep_done(running)
        assert resident(running).table.peek(key(0)) is None
        reads_go_on = hold_index_reads(running)
        small_world.chunks.calls.clear()
        reading = asyncio.ensure_future(others.client.call(command))
        await running.until(lambda: "read" in small_world.chunks.calls)
        small_world.chunks.refused = "delete"
        assert isinstance(await tables.client.call(wire.DeleteTableSegment(2, TABLE, False)), wire.WrongHost)
        reads_go_on.set()
        reply = await reading
        found = reply.keys if isinstance(reply, wire.TableKeysRead) else reply.entries
        assert [(bytes(each.key), each.version) for each in found] == [(key(0), known[key(0)][0])]
