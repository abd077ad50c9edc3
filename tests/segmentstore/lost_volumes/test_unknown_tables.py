"""Tier 2 has runs of a table that its snapshot does not know: it is a table again, with the entries that tier 2 has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lost_volumes import NEVER_S, SEGMENTS, killed, lose_volume, snapshot
from small_tables import SMALL, TABLE
from store_world import World
from table_client import TableClient

from headrace import wire
from headrace.model.chunks import ChunkRun, TableMark, chunk_body, chunk_run, chunk_sort
from headrace.model.errors import CorruptError

pytestmark = pytest.mark.anyio

WRITER = 5
KEY_LENGTH = 3


async def lose_after_tables(world: World, entries=20):
    """The last snapshot is older than a table, whose entries are in tier 2 in runs of four."""
    usual = world.limits
    world.limits = replace(usual, snapshot_every_s=NEVER_S)
    async with killed(world) as running:
        client = await running.connect()
        await client.create(SEGMENTS[0])
        await snapshot(running)
        running.store.owned[0].writer._snapshots._limits = replace(
            usual, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S
        )
        table = TableClient(client, TABLE)
        await table.create(key_length=KEY_LENGTH)
        for number in range(entries):
            await table.put((key_of(number), wire.NOT_EXISTS, b"value" * 10))
            if number % 4 == 3:
                await running.flush()
    world.limits = usual
    lose_volume(world)


def key_of(number):
    return b"%03d" % number


async def test_a_table_that_the_snapshot_did_not_know_is_a_table(world: World, caplog):
    await lose_after_tables(world)
    for number in (20, 21):  # restored, then on its volume
        async with world.running() as running:
            client = await running.connect()
            table = TableClient(client, TABLE)
            assert (await table.info()).key_length == KEY_LENGTH
            assert await table.values(key_of(0), key_of(19)) == [b"value" * 10] * 2
            await table.put((key_of(number), wire.NOT_EXISTS, b"new"))
            refusal = await table.put((b"too long", wire.NO_VERSION, b""))
            assert isinstance(refusal, wire.ErrorMessage)
            assert len(await table.pages(50)) == number + 1
    assert "event=segment_found" in caplog.text


async def test_its_index_is_found_again(world: World, caplog):
    """The index is known by the time at which the table was made."""
    world.table_limits = replace(SMALL, tail_memory_bytes=2_000)

    await lose_after_tables(world, 60)
    async with world.running() as running:
        table = TableClient(await running.connect(), TABLE)
        assert len(await table.pages(100)) == 60
        tables = [resident.table for _, resident in running.store.owned[0].tables._memory.of_container(0)]
        assert [bool(table.runs) for table in tables] == [True]


async def test_it_takes_no_events(world: World):
    await lose_after_tables(world)
    async with world.running() as running:
        client = await running.connect()
        reply = await client.call(wire.SetupAppend(6, WRITER, TABLE))
        assert reply == wire.OperationUnsupported(6, "SetupAppend on a table", "")
        assert isinstance(await client.call(wire.CreateTableSegment(7, TABLE, "", False, 0)), wire.SegmentAlreadyExists)


async def test_merged_runs_of_a_table_keep_its_mark(world: World):
    world.limits = replace(world.limits, compacted_runs_min=2)

    async with world.running() as running:
        client = await running.connect()
        table = TableClient(client, TABLE)
        await table.create(key_length=KEY_LENGTH)
        directory = running.store.owned[0].writer._directory
        for number in range(8):
            await table.put((key_of(number), wire.NOT_EXISTS, b"value"))
            await running.flush()

        def merged():
            return running.store.owned[0].container.metrics.compacted_bytes > 0

        await running.until(merged)
        runs = await directory.page(TABLE)
        assert len(runs) < 8
        assert {run.table for run in runs} == {TableMark(KEY_LENGTH, runs[0].table.created_ms)}


@pytest.mark.parametrize("stored", [[1], [1, 2, 3], [1, "2"], [True, 2], 7, None])
def test_a_mark_that_is_none_is_refused(stored):
    run = ChunkRun(5, 10, "object", 0, table=TableMark(3, 1_000))
    body = chunk_body(run)
    assert chunk_run(chunk_sort(5), body) == run
    with pytest.raises(CorruptError, match="mark of a table"):
        chunk_run(chunk_sort(5), {**body, "table": stored})
