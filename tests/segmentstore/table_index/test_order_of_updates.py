"""Updates of a table keep the order of their arrival."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from small_tables import ANY, TABLE, container_of_table, evict_table
from store_world import World
from table_client import TableClient

from headrace import wire
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tables.index_store import IndexStore

pytestmark = pytest.mark.anyio


async def test_user_does_not_overtake_those_that_waited(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The last one comes when the table is loaded, but before the second one, which waited for that, is resumed."""
    goes_on, load, came = asyncio.Event(), IndexStore.load, []

    async def load_slowly(store: IndexStore, segment: Segment) -> Any:
        record = await load(store, segment)
        await goes_on.wait()
        return record

    async with small_world.running() as running:
        await TableClient(await running.connect(), TABLE).create()
        owned = running.store.owned[container_of_table(small_world)]
        monkeypatch.setattr(IndexStore, "load", load_slowly)

        async def use(number: int) -> None:
            async with owned.tables.use(TABLE) as table, table.order:
                came.append(number)

        users = [asyncio.ensure_future(use(number)) for number in (1, 2)]
        await asyncio.sleep(0.01)
        goes_on.set()
        await asyncio.gather(*users, use(3))
        assert came == [1, 2, 3]


async def test_updates_of_a_connection_keep_their_order(small_world: World):
    """The table is loaded while they arrive."""
    count = 12
    async with small_world.running() as running:
        client = await running.connect()
        await TableClient(client, TABLE).create()
        for _ in range(30):
            evict_table(running)
            for number in range(count):
                client.send(wire.UpdateTableEntries(number, TABLE, "", (wire.TableEntry(b"a", ANY, b"%d" % number),)))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
            replies = {(reply := await client.receive()).request_id: reply for _ in range(count)}
            versions = [replies[number].versions for number in range(count)]
            assert versions == sorted(versions)
