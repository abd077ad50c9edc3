"""A store whose segments leave memory when a test says so, and what shows that they came back as they were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import lost_volumes
from segment_writes import write
from store_world import RunningStore, WireClient, World

from headrace import wire

SEGMENTS = [f"scope/stream/0.#epoch.{number}" for number in range(6)]
FIRST = SEGMENTS[0]
IDLE_S = 10_000.0


def names_in_memory(running: RunningStore) -> set[str]:
    return set(running.store.owned[0].container.metadata.segments)


async def rest(running: RunningStore) -> None:
    """Everything is in tier 2, which has a snapshot too; then nothing happens for long."""
    await running.flush()
    owned = running.store.owned[0]

    def told() -> bool:
        running.world.clock.advance(2)
        return bool(owned.evictor._snapshots.has_pointer)

    await running.until(told)
    running.world.clock.advance(2 * IDLE_S)


async def evict(running: RunningStore) -> int:
    """Let all go that may; how many have gone."""
    await rest(running)
    return int(await running.store.owned[0].evictor.sweep())


async def passes(running: RunningStore, count: int) -> None:
    """Let the storage writer look as often for what there is to do."""
    writer = running.store.owned[0].writer
    honest = writer.run_pass
    begun: list[None] = []

    async def counted() -> bool:
        begun.append(None)
        return await honest()

    writer.run_pass = counted  # type: ignore[method-assign]
    await running.until(lambda: len(begun) > count)


@asynccontextmanager
async def running_store(world: World, **fields: Any) -> AsyncIterator[RunningStore]:
    """A store from which segments leave only when the test says so."""
    async with world.running(**fields) as running:
        await running.store.owned[0].maintenance.stop()
        yield running


@asynccontextmanager
async def with_evicted(world: World, *names: str) -> AsyncIterator[tuple[RunningStore, WireClient]]:
    """A running store, a client, and segments that hold their own name and are not in memory."""
    async with running_store(world) as running:
        client = await running.connect()
        for name in names:
            await client.create(name)
            await write(client, name, [name.encode()])
        assert await evict(running) == len(names)
        assert not names_in_memory(running)
        yield running, client


def segment_is(
    name: str, *, sealed: bool = False, start: int = 0, end: int | None = None
) -> Callable[[Any], Awaitable[None]]:
    """A check over a client; without `end` the segment holds its own name."""

    async def check(client: WireClient) -> None:
        info = await client.call(wire.GetStreamSegmentInfo(1, name))
        assert (info.exists, info.is_sealed, info.start_offset) == (True, sealed, start)
        assert info.write_offset == (len(name) if end is None else end)

    return check


@asynccontextmanager
async def killed(world: World) -> AsyncIterator[RunningStore]:
    """A store that is gone from one moment to the next, with its volume."""
    async with lost_volumes.killed(world) as running:
        await running.store.owned[0].maintenance.stop()
        yield running
    lost_volumes.lose_volume(world)
