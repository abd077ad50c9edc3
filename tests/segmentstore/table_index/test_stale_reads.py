"""Requests that are reading a table when it leaves memory: what they find may not be the table any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from idle_segments import IDLE_S, evict, running_store
from small_tables import (
    ANY,
    SMALL,
    TABLE,
    CountedStorage,
    filled_table,
    forget_index,
    hold_index_reads,
    key,
    read_of,
    resident,
    tiering,
    undone_hand_over,
)
from store_world import RunningStore, World
from table_client import TableClient

from headrace import wire

pytestmark = pytest.mark.anyio

READ_KEYS = wire.ReadTableKeys(5, TABLE, "", 1, b"", b"", b"", b"")
READ_ENTRIES = wire.ReadTableEntries(5, TABLE, "", 1, b"")


@pytest.mark.parametrize("command", [read_of(0), READ_KEYS, READ_ENTRIES])
async def test_reads_find_what_a_failed_removal_leaves(small_world: World, command: Any):
    """It has removed the record of the index. The segment still has the entries."""
    async with small_world.running() as running:
        tables, others, known = await filled_table(running)
        assert resident(running).table.peek(key(0)) is None
        reads_go_on = hold_index_reads(running)
        small_world.chunks.calls.clear()
        reading = asyncio.ensure_future(others.client.call(command))
        await running.until(lambda: "read" in small_world.chunks.calls)
        small_world.chunks.refused = "delete"
        assert isinstance(await tables.client.call(wire.DeleteTableSegment(2, TABLE, False)), wire.WrongHost)
        reads_go_on.set()
        reply = await reading
        listed = reply.keys if isinstance(reply, wire.TableKeysRead) else reply.entries
        assert [(bytes(each.key), each.version) for each in listed] == [(key(0), known[key(0)][0])]


def hold_answer(running: RunningStore, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """The answer to the next read of a block of an index waits for the second event; the first tells that it does."""
    forget_index(running)
    read, waits, goes_on = running.world.chunks.read, asyncio.Event(), asyncio.Event()

    async def read_and_wait(name: str, position: int, length: int) -> bytes:
        data = await read(name, position, length)
        if name.startswith("tables/") and not waits.is_set():
            waits.set()
            await goes_on.wait()
        return data

    monkeypatch.setattr(running.world.chunks, "read", read_and_wait)
    return waits, goes_on


async def compact(running: RunningStore, tables: TableClient) -> None:
    """Move all present entries of a table."""
    end = (await tables.info()).length
    async with tiering(running):
        while (await tables.info()).start_offset < end:
            await tables.put((b"busy", ANY, bytes(1000)))


@pytest.mark.parametrize("is_update", [False, True])
async def test_keys_that_were_moved_meanwhile_are_not_missing(
    small_world: World, monkeypatch: pytest.MonkeyPatch, is_update: bool
):
    """The evicted table does not know where their entries are."""
    async with small_world.running() as running:
        tables, others, known = await filled_table(running)
        entries = await tables.get(key(0))
        assert resident(running).table.peek(key(0)) is None
        waits, goes_on = hold_answer(running, monkeypatch)
        asked = others.put((key(0), known[key(0)][0], b"new")) if is_update else others.client.call(read_of(0))
        asking = asyncio.ensure_future(asked)
        await waits.wait()
        await undone_hand_over(running, monkeypatch)
        await compact(running, tables)
        goes_on.set()
        assert isinstance(await asking, wire.WrongHost)
        assert await tables.get(key(0)) == entries


async def test_delta_of_an_evicted_table_skips_no_new_entry(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The evicted table does not know it as the newest one of its key."""
    async with small_world.running() as running:
        tables, others, _ = await filled_table(running)
        waits, goes_on = hold_answer(running, monkeypatch)
        reading = asyncio.ensure_future(others.client.call(wire.ReadTableEntriesDelta(7, TABLE, "", 0, 1000)))
        await waits.wait()
        await undone_hand_over(running, monkeypatch)
        assert isinstance(await tables.put((b"new", ANY, b"new")), wire.TableEntriesUpdated)
        goes_on.set()
        assert isinstance(await reading, wire.WrongHost)
        assert b"new" in await tables.deltas(1000)


async def test_segment_that_was_evicted_meanwhile_is_not_missing(
    make_world: type[World], monkeypatch: pytest.MonkeyPatch
):
    """The segment goes when the table that was loaded since is not in use."""
    world = make_world(table_limits=SMALL, chunks=CountedStorage(), container_count=1)
    world.limits = replace(world.limits, idle_segment_s=IDLE_S, idle_segments_kept=0)
    async with running_store(world) as running:
        tables, others, known = await filled_table(running)
        await tables.get(key(0))
        waits, goes_on = hold_answer(running, monkeypatch)
        updating = asyncio.ensure_future(others.put((key(0), known[key(0)][0], b"new")))
        await waits.wait()
        await undone_hand_over(running, monkeypatch)
        await running.store.owned[0].maintenance.stop()
        assert await evict(running) == 1
        goes_on.set()
        assert isinstance(await updating, wire.WrongHost)
        assert await tables.get(key(0)) == [(key(0), *known[key(0)])]
