"""An update of very many entries shares the event loop with all others, and is done as a whole or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from session_channels import feed, open_session
from small_tables import ANY, NONE, TABLE, resident
from store_world import RunningStore, WireClient, World
from table_client import TableClient

from headrace import wire
from headrace.segmentstore.tables import table_requests
from headrace.segmentstore.tables.table import Table, TailAddition
from headrace.segmentstore.tables.table_limits import LARGE_BATCHES_AT_ONCE_MAX, SLICE_CHANGES_MAX

pytestmark = pytest.mark.anyio

COUNT = 60_000
KEYS = [b"%06d" % number for number in range(COUNT)]


class Turns:
    """Counts the turns of the event loop, and calls `look` in each."""

    def __init__(self, look=lambda: None):
        self.number = 0
        self._look = look
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self):
        self.number += 1
        self._look()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self):
        self._handle.cancel()


@pytest.fixture
async def running(world: World) -> AsyncIterator[RunningStore]:
    async with world.running() as running:
        yield running


@pytest.fixture
async def client(running: RunningStore) -> WireClient:
    return await running.connect()


@pytest.fixture(autouse=True)
async def tables(client: WireClient) -> TableClient:
    """A table with one entry."""
    tables = TableClient(client, TABLE)
    await tables.create()
    await tables.put((b"first", ANY, b"v"))
    return tables


def update(keys, version=NONE, request_id=3):
    entries = tuple(wire.TableEntry(key, version, b"v" + key) for key in keys)
    return wire.UpdateTableEntries(request_id, TABLE, "", entries)


async def test_work_on_a_batch_is_done_in_slices(client, monkeypatch):
    done: Counter[tuple[str, int]] = Counter()
    turns = None

    def counting(name, original):
        def wrapper(*arguments):
            done[name, turns.number if turns else 0] += 1
            return original(*arguments)

        return wrapper

    monkeypatch.setattr(table_requests, "encode_entry", counting("read", table_requests.encode_entry))
    monkeypatch.setattr(Table, "check_key", counting("checked", Table.check_key))
    monkeypatch.setattr(TailAddition, "put", counting("entered", TailAddition.put))

    turns = Turns()
    done.clear()
    reply = await client.call(update(KEYS))
    turns.stop()
    assert len(reply.versions) == COUNT
    for name in ("read", "checked", "entered"):
        slices = [count for (what, _), count in done.items() if what == name]
        assert sum(slices) == COUNT, name
        assert max(slices) <= SLICE_CHANGES_MAX, name
    done.clear()
    turns = Turns()
    removed = wire.RemoveTableKeys(4, TABLE, "", tuple(wire.TableKey(key) for key in KEYS))
    assert isinstance(await client.call(removed), wire.TableKeysRemoved)
    turns.stop()
    assert max(done.values()) <= SLICE_CHANGES_MAX


async def test_nothing_of_a_batch_is_visible_before_all_of_it(running, client, tables):
    seen = set()

    table = resident(running).table

    def look():
        found = sum(table.peek(key) is not None for key in (KEYS[0], KEYS[COUNT // 2], KEYS[-1]))
        seen.add((found, table.entry_count, table.segment.accepted.length == before))

    before = table.segment.accepted.length
    turns = Turns(look)
    versions = (await client.call(update(KEYS))).versions
    turns.stop()
    assert seen == {(0, 1, True), (3, COUNT + 1, False)}
    assert await tables.get(KEYS[0], KEYS[-1]) == [
        (key, versions[index], b"v" + key) for key, index in ((KEYS[0], 0), (KEYS[-1], -1))
    ]
    assert versions[0] == before


async def test_one_failed_condition_rejects_the_whole_batch(running, client):
    table, pool = resident(running).table, running.store.pool
    before, untiered = table.segment.accepted.length, pool.untiered_bytes
    reply = await client.call(update([*KEYS[:5000], b"first"]))
    assert isinstance(reply, wire.TableKeyBadVersion)
    assert (table.segment.accepted.length, table.entry_count, pool.untiered_bytes) == (before, 1, untiered)
    too_long = (*update(KEYS[:5000]).entries, wire.TableEntry(bytes(9000), NONE, b""))
    reply = await client.call(wire.UpdateTableEntries(5, TABLE, "", too_long))
    assert isinstance(reply, wire.ErrorMessage)
    assert (table.segment.accepted.length, table.entry_count, pool.untiered_bytes) == (before, 1, untiered)
    assert len((await client.call(update(KEYS[:5000]))).versions) == 5000


async def test_commands_behind_a_large_batch_come_after_it(client):
    client.send(
        update(KEYS[:5000], request_id=1),
        wire.UpdateTableEntries(2, TABLE, "", (wire.TableEntry(KEYS[4999], ANY, b"newest"),)),
        wire.UpdateTableEntries(3, TABLE, "", (wire.TableEntry(KEYS[0], NONE, b"not missing"),)),
        wire.ReadTable(4, TABLE, "", (wire.TableKey(KEYS[4999]),)),
    )
    replies = {reply.request_id: reply for reply in [await client.receive() for _ in range(4)]}
    assert len(replies[1].versions) == 5000
    assert replies[2].versions[0] > replies[1].versions[-1]
    assert replies[3] == wire.TableKeyBadVersion(3, TABLE)
    assert bytes(replies[4].entries[0].value) == b"newest"


async def test_malformed_batch_closes_the_connection(running, client):
    table, pool = resident(running).table, running.store.pool
    before, untiered = table.segment.accepted.length, pool.untiered_bytes
    frame = bytearray(wire.encode(update(KEYS[:5000])))
    middle = frame.index(KEYS[2500]) - 8
    frame[middle : middle + 4] = b"\x00\x00\x00\x01"
    session, channel = open_session(running)
    await feed(session, channel, bytes(frame))
    await running.until(lambda: channel.closed)
    assert not channel.sent
    assert (table.segment.accepted.length, table.entry_count) == (before, 1)
    await running.until(lambda: pool.untiered_bytes == untiered)
    assert len((await client.call(update(KEYS[:5000]))).versions) == 5000  # its slot is free again


async def test_few_large_batches_are_read_at_once(running, monkeypatch):
    reading = Counter()
    most = 0
    original = table_requests.Batch.read_slice

    def read_slice(batch):
        nonlocal most
        more = original(batch)
        if len(batch) > SLICE_CHANGES_MAX:  # the first slice is read before it is known how many there are
            reading[id(batch)] = 1
            most = max(most, len(reading))
            if not more:
                del reading[id(batch)]
        return more

    monkeypatch.setattr(table_requests.Batch, "read_slice", read_slice)

    clients = [await running.connect() for _ in range(5)]
    for number, each in enumerate(clients):
        each.send(update(KEYS[5000 * number : 5000 * (number + 1)]))
    for each in clients:
        assert len((await each.receive()).versions) == 5000
    assert most == LARGE_BATCHES_AT_ONCE_MAX


@pytest.mark.parametrize("after", [600, 4000])
async def test_a_compaction_in_the_middle_moves_the_batch(running, client, tables, monkeypatch, after):
    """It appends copies while the places of a batch are prepared: those have to begin behind the copies then."""
    original, put = TailAddition.put, 0

    upkeep = resident(running).upkeep
    compacted = []

    def counted(addition, key, place):
        nonlocal put
        put += 1
        if put == after:
            compacted.append(asyncio.ensure_future(upkeep._compact()))
        original(addition, key, place)

    monkeypatch.setattr(TailAddition, "put", counted)
    versions = (await client.call(update(KEYS[:5000]))).versions
    assert await compacted[0]
    assert put > 5001
    assert await tables.get(b"first", *KEYS[:5000:499]) == [
        (b"first", 0, b"v"),
        *((key, version, b"v" + key) for key, version in list(zip(KEYS, versions, strict=False))[::499]),
    ]
    running.store.table_memory.drop(running.store.owner_of(TABLE).container.container, TABLE)
    assert (await tables.info()).entry_count == 5001  # as the segment says, read from its begin
