"""Stores that are killed, volumes that are lost, and what tier 2 had been told before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from store_world import RunningStore, WireClient, World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.metadata.cluster_records import decode_snapshot_pointer, snapshot_sort
from headrace.model.containers import CLUSTER_PARTITION
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Key

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(6)]
NO_NUMBER = wire.NO_ATTRIBUTE_VALUE
NEVER_S = 1e15


def pointer(world: World, container: int = 0) -> Any:
    """What the metadata store says of the container's newest snapshot."""
    record = world.metadata.get(Key(CLUSTER_PARTITION, snapshot_sort(container)))
    return None if record is None else decode_snapshot_pointer(record.body)


def lose_volume(world: World) -> None:
    world.disk = MemoryJournalDisk()


def gone(*writes: Any) -> None:
    """The metadata store's `write` for a process that was killed: what it does while it ends reaches nobody."""
    raise UnavailableError("this process is gone")


@asynccontextmanager
async def killed(world: World) -> AsyncIterator[RunningStore]:
    """A store that is gone from one moment to the next: what it does while it ends does not reach tier 2."""
    honest = world.metadata.write
    try:
        async with world.running(graceful=False) as running:
            yield running
            world.metadata.write = gone  # type: ignore[method-assign]
    finally:
        world.metadata.write = honest  # type: ignore[method-assign]


async def snapshot(running: RunningStore) -> None:
    """Have a snapshot of the present written, and wait until its owner knows that it is there. No time passes."""
    snapshots = running.store.owned[0].writer._snapshots
    before, sequence = snapshots.written, running.store.owned[0].container.log.last_sequence

    def is_written() -> bool:
        taken = snapshots._sequence
        if snapshots.written > before and taken is not None and taken >= sequence:
            return True
        snapshots.want()  # again after a snapshot that was taken before
        return False

    await running.until(is_written)


async def passing_time_until(running: RunningStore, condition: Callable[[], bool]) -> None:
    def passed() -> bool:
        running.world.clock.advance(2)
        return condition()

    await running.until(passed)


def tell_no_more(running: RunningStore) -> None:
    """Let tier 2 get no snapshot any more from this store."""
    told = running.store.owned[0].writer._snapshots
    told._limits = replace(told._limits, snapshot_every_s=NEVER_S, snapshot_soon_s=NEVER_S)


def entry_count(world: World, name: str) -> int:
    """How many runs and links the chunk directory has under a name."""
    return len(world.metadata.query(f"chunks/{name}", limit=100).records)


async def shape(client: WireClient, segment: str) -> tuple[bool, bool, int, int]:
    info = await client.call(wire.GetStreamSegmentInfo(3, segment))
    return info.exists, info.is_sealed, info.start_offset, info.write_offset
