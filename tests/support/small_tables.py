"""Tables whose bounds are so small that a few hundred keys outgrow memory, and storage that tells what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from store_world import WAIT_S, RunningStore, World
from table_client import TableClient

from headrace import wire
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.model.errors import UnavailableError
from headrace.model.names import container_of_segment
from headrace.segmentstore.tables.table_limits import TableLimits

TABLE = "scope/_tables/0.#epoch.0"
ANY, NONE = wire.NO_VERSION, wire.NOT_EXISTS
SMALL = TableLimits(
    tail_memory_bytes=20_000,
    replay_segment_bytes=64 << 10,
    all_tails_memory_bytes=200_000,
    cached_blocks_bytes=8 << 10,
    index_block_bytes=512,
    index_object_bytes=4 << 10,
    compaction_segment_bytes=16 << 10,
    retry_first_s=0.001,
    retry_max_s=0.001,
)


class CountedStorage(MemoryChunkStorage):
    """Remembers what was asked of the objects of tables; refuses what `refused` names."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.refused = ""
        self.held: asyncio.Event | None = None

    def note(self, what: str, name: str) -> None:
        if name.startswith("tables/"):
            self.calls.append(what)
            if self.refused == what:
                raise UnavailableError(what)

    async def put(self, name: str, parts: Any) -> None:
        self.note("put", name)
        await super().put(name, parts)

    async def read(self, name: str, position: int, length: int) -> bytes:
        self.note("read", name)
        if self.held is not None and name.startswith("tables/"):
            await self.held.wait()
        return await super().read(name, position, length)

    async def delete(self, names: Any) -> None:
        self.note("delete", names[0])
        await super().delete(names)

    def table_objects(self) -> set[str]:
        return {name for name in self._objects if name.startswith("tables/")}


@asynccontextmanager
async def tiering(running: RunningStore) -> AsyncIterator[None]:
    """While this lasts everything goes to tier 2 at once."""

    stopped = False

    async def flush_until_stopped() -> None:
        while not stopped:
            await running.flush()
            await asyncio.sleep(0.001)

    task = asyncio.ensure_future(flush_until_stopped())
    try:
        yield
    finally:
        stopped = True  # no cancellation: the one of `wait_for` may get lost
        await task


def resident(running: RunningStore, name: str = TABLE) -> Any:
    return running.store.table_memory.get(container_of_segment(name, running.world.container_count), name)


def container_of_table(world: World) -> int:
    return container_of_segment(TABLE, world.container_count)


def evict_table(running: RunningStore) -> None:
    running.store.table_memory.drop(container_of_table(running.world), TABLE)


def forget_index(running: RunningStore) -> None:
    """Look-ups in the index read from tier 2."""
    index = running.store.table_memory.index
    index._blocks._values.clear()
    index._sparse._values.clear()


def hold_first(storage: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """The first call of this method for the index of a table tells that it has begun, and waits to go on."""
    begun, goes_on, honest = asyncio.Event(), asyncio.Event(), getattr(storage, method)

    async def wait_and_call(names: Any, *arguments: Any, **page: Any) -> Any:
        name = names if isinstance(names, str) else names[0]
        if name.startswith("tables/") and not begun.is_set():
            begun.set()
            await goes_on.wait()
        return await honest(names, *arguments, **page)

    monkeypatch.setattr(storage, method, wait_and_call)
    return begun, goes_on


def hold_index_reads(running: RunningStore) -> asyncio.Event:
    """Look-ups in the index wait for this event: no block of it is in memory any more."""
    chunks = running.world.chunks
    assert isinstance(chunks, CountedStorage)
    forget_index(running)
    chunks.held = asyncio.Event()
    return chunks.held


async def undone_hand_over(running: RunningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the retries of a write, and the next request loads the table."""

    async def no_drain() -> bool:
        raise UnavailableError("not now")

    container = container_of_table(running.world)
    with monkeypatch.context() as patch:
        patch.setattr(running.store.owned[container].writer, "drain", no_drain)
        assert not await running.store.hand_over(container, WAIT_S)


async def upkeep_done(running: RunningStore) -> None:
    await running.flush()
    await running.until(lambda: (held := resident(running)) is None or (held.task is None and not held.upkeep.due))


def key(number: int) -> bytes:
    return b"key-%06d" % number


def read_of(number: int) -> wire.ReadTable:
    return wire.ReadTable(5, TABLE, "", (wire.TableKey(key(number)),))


async def filled_table(running: RunningStore) -> tuple[TableClient, TableClient, dict[bytes, tuple[int, bytes]]]:
    """Two clients of a new table, and its entries, the older ones of which only the index has."""
    tables, others = [TableClient(await running.connect(), TABLE) for _ in range(2)]
    await tables.create()
    async with tiering(running):
        known = await fill(running, tables, 200)
        await upkeep_done(running)
    return tables, others, known


async def fill(
    running: RunningStore,
    tables: TableClient,
    count: int,
    *,
    batch: int = 10,
    value: bytes = b"v",
    seed: int = 1,
    start: int = 0,
) -> dict[bytes, tuple[int, bytes]]:
    """Write that many keys in no order, and return what they are; the tail never outgrows its bound."""
    numbers = list(range(start, start + count))
    Random(seed).shuffle(numbers)
    known: dict[bytes, tuple[int, bytes]] = {}
    for first in range(0, count, batch):
        changes = [(key(number), ANY, value + b"%d" % number) for number in numbers[first : first + batch]]
        reply = await tables.put(*changes)
        assert isinstance(reply, wire.TableEntriesUpdated), reply
        known.update((each, (version, text)) for (each, _, text), version in zip(changes, reply.versions, strict=True))
        table = resident(running).table
        assert table.memory_bytes <= SMALL.tail_memory_bytes + 2 * batch * 400
    return known
