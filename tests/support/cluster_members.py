"""Segment stores as members of a cluster, in one process: they join, beat when they are told to, leave or die."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from lost_volumes import gone
from store_world import RunningStore, World

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.controller.ticks.assign_containers import detect_failed_stores
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.cluster import StoreLease
from headrace.model.external_access import ExternalOffer
from headrace.model.names import container_of_segment
from segmentstore_fargate.membership import Membership, Place

CONTAINERS = 4
GRACE_MS = 60_000
SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 3
SEGMENT_OF_CONTAINER_0 = next(
    name
    for name in (f"scope/stream/{number}.#epoch.0" for number in range(100))
    if container_of_segment(name, CONTAINERS) == 0
)


class Counted:
    """A metadata store that counts what heartbeats ask it for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return getattr(self._inner, name)(*arguments, **named)

        return call


class Member:
    """A running store and its membership; nothing beats by itself."""

    def __init__(self, running: RunningStore, membership: Membership, metadata: Counted, fatal: list[Any]) -> None:
        self.running, self.membership, self.metadata, self.fatal = running, membership, metadata, fatal

    @property
    def containers(self) -> list[int]:
        return sorted(self.running.store.owned)

    async def beat(self) -> None:
        await self.membership.heartbeat.beat()

    async def serves(self, *containers: int) -> None:
        await self.running.until(lambda: self.containers == sorted(containers))


@asynccontextmanager
async def member(
    world: World,
    name: str,
    share: Iterable[int] = (),
    *,
    disk: MemoryJournalDisk | None = None,
    graceful: bool = True,
    volume: str | None = None,
    task: str = "",
    openings_s: float = 10,
    offer: ExternalOffer | None = None,
) -> AsyncIterator[Member]:
    """Without `graceful` it is gone from one moment to the next: what it does while it ends reaches nobody."""
    own = replace(world, disk=disk or MemoryJournalDisk(), opens=())
    metadata = Counted(world.metadata)
    fatal: list[Exception] = []
    honest = world.metadata.write
    try:
        async with own.running(graceful=graceful) as running:
            identity = StoreLease(name, "127.0.0.1", running.port, "z", 100, volume or f"disk-{name}", task, GRACE_MS)
            place = Place(own.layout.count, tuple(share))
            membership = Membership(running.store, metadata, world.clock, identity, place, fatal.append, offer=offer)
            await membership.register()
            await membership.join()
            try:
                yield Member(running, membership, metadata, fatal)
            finally:
                if graceful:
                    await membership.announce_leaving()
                    await membership.finish_openings(openings_s)
                    await running.store.close(10)
                    await membership.end()
                else:
                    world.metadata.write = gone  # type: ignore[method-assign]
                    openings = membership._openings._tasks.values()
                    membership.heartbeat.stop()
                    membership._settling.cancel()
                    for opening in openings:
                        opening.cancel()
    finally:
        world.metadata.write = honest  # type: ignore[method-assign]


def look(world: World) -> Any:
    return detect_failed_stores(world.metadata, world.clock, world.layout.count)


def lease(world: World, name: str) -> Any:
    stored_lease = ClusterRecords(world.metadata).lease(name)
    assert stored_lease is not None
    return stored_lease


async def write(running: RunningStore, *events: bytes) -> None:
    client = await running.connect()
    await client.call(wire.CreateSegment(1, SEGMENT, 0, 0))
    number = max(0, await client.set_up(SEGMENT, WRITER))
    for each, event in enumerate(events, number + 1):
        await client.append(WRITER, each, event)
    client.close()


async def content(running: RunningStore) -> bytes:
    return await (await running.connect()).read_all(SEGMENT)


async def owner(*members: Member) -> Member:
    """Who serves the segment."""
    for each in members:
        info = await (await each.running.connect()).call(wire.GetStreamSegmentInfo(1, SEGMENT))
        if not isinstance(info, wire.WrongHost):
            return each
    raise AssertionError("nobody serves it")
