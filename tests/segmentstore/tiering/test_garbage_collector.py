"""What a sweep deletes of a container's objects: all old garbage, on whichever page it is, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import write_claim
from headrace.model.chunks import ChunkRun, object_partition, packed_name, packed_prefix
from headrace.model.containers import ContainerClaim
from headrace.ports.chunk_storage import StoredObject
from headrace.ports.metadata_store import UNANSWERED_WRITE_S
from headrace.segmentstore.tiering import garbage_collector
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.garbage_collector import GarbageCollector
from headrace.segmentstore.tiering.owner_writes import ObjectNames
from headrace.segmentstore.tiering.storage_limits import StorageLimits

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
LIMITS = StorageLimits(sweep_every_s=10.0, object_grace_s=100.0)


class Container:
    """Tier 2 of one container, and its collector."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.store = MemoryMetadataStore()
        self.store.write(write_claim(0, ContainerClaim("store", "host", 1, "local"), None))
        self.chunks = MemoryChunkStorage(self.clock)
        self.directory = ChunkDirectory(self.store, 0, 0, self.clock)
        self.names = ObjectNames(0, 0, self.clock)
        self.collector = GarbageCollector(self.directory, self.chunks, self.names, self.clock, LIMITS)

    async def enter(self, name: str, number: int) -> None:
        await self.directory.add([(SEGMENT, ChunkRun(number, 1, name, 0))], {name: 1})

    async def empty(self, number: int) -> None:
        await self.directory.remove(SEGMENT, await self.directory.page(SEGMENT, first=number, limit=1))

    def age(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))

    async def sweep(self) -> None:
        while await self.collector.run_pass():
            pass

    async def stored(self) -> list[str]:
        return [each.name for each in await self.chunks.list(packed_prefix(0))]

    def counted(self) -> list[str]:
        return [record.key.sort for record in self.store.query(object_partition(0), limit=1000).records]


@pytest.mark.parametrize("seed", range(20))
async def test_a_sweep_deletes_all_old_garbage_and_nothing_else(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The pages of the counts and of the listing end at different objects."""
    monkeypatch.setattr(garbage_collector, "OBJECTS_PER_PAGE", 3)
    random, container = Random(seed), Container()
    kept: set[str] = set()
    kinds = [random.choice(("used", "orphan", "empty", "count only")) for _ in range(random.randint(0, 16))]
    young = random.randint(0, len(kinds))
    for number, kind in enumerate(kinds):
        if number == young:
            container.age(LIMITS.object_grace_s - 1)
        name = packed_name(0, 0, number)
        if kind != "count only":
            await container.chunks.put(name, [b"x"])
        if kind != "orphan":
            await container.enter(name, number)
        if kind in ("empty", "count only"):
            await container.empty(number)
        if kind == "used" or number >= young:
            kept.add(name)
    container.age(1 if young < len(kinds) else LIMITS.object_grace_s)
    await container.sweep()
    assert await container.stored() == [
        packed_name(0, 0, number)
        for number, kind in enumerate(kinds)
        if packed_name(0, 0, number) in kept and kind != "count only"
    ]
    assert container.counted() == [
        packed_name(0, 0, number)
        for number, kind in enumerate(kinds)
        if packed_name(0, 0, number) in kept and kind != "orphan"
    ]
    assert "event=foreign_change" not in caplog.text


async def test_an_object_that_enters_during_a_sweep_stays(monkeypatch: pytest.MonkeyPatch):
    """A write without an answer takes effect when the counts have been read."""
    container, name = Container(), packed_name(0, 0, 7)
    await container.chunks.put(name, [b"x"])
    container.age(LIMITS.object_grace_s)
    honest = container.chunks.list

    async def listed(*args, **fields):
        await container.enter(name, 0)
        return await honest(*args, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(container.chunks, "list", listed)
        await container.sweep()
    assert await container.stored() == [name]


async def test_an_emptied_object_stays_while_runs_may_enter():
    """Its first runs were removed, and others of it are still on their way to the directory."""
    container = Container()
    with container.names.new() as name:
        await container.chunks.put(name, [b"xy"])
        await container.enter(name, 0)
        await container.empty(0)
        container.age(LIMITS.object_grace_s)
        await container.sweep()
        assert await container.stored() == [name]
    container.age(max(UNANSWERED_WRITE_S, LIMITS.sweep_every_s))
    await container.sweep()
    assert await container.stored() == []
    assert container.counted() == []


async def test_sweep_begins_when_it_is_due(monkeypatch: pytest.MonkeyPatch):
    container, honest, sweeps = Container(), MemoryChunkStorage.list, 0

    async def listed(*args: Any, **fields: Any) -> Sequence[StoredObject]:
        nonlocal sweeps
        sweeps += 1
        return await honest(container.chunks, *args, **fields)

    monkeypatch.setattr(container.chunks, "list", listed)
    for seconds, count in ((0, 0), (9.999, 0), (0.001, 1), (0, 1), (9.999, 1), (0.001, 2), (25, 3), (9, 3)):
        container.age(seconds)
        assert not await container.collector.run_pass(), "one page is all"
        assert sweeps == count


@pytest.mark.parametrize(("stored", "told"), [(b"xy", None), (b"x", 1), (b"xyz", 3), (None, -1)])
async def test_changed_objects_in_use_are_reported(
    stored: bytes | None, told: int | None, caplog: pytest.LogCaptureFixture
):
    """An operator can restore them before reads fail. One that no run uses is of no interest."""
    container = Container()
    names = [packed_name(0, 0, number) for number in range(2)]
    for number, name in enumerate(names):
        if stored is not None:
            await container.chunks.put(name, [stored])
        await container.directory.add([(SEGMENT, ChunkRun(number, 1, name, 0))], {name: 2})
    await container.empty(0)
    container.age(LIMITS.sweep_every_s)
    await container.sweep()
    reports = [each for each in caplog.messages if "event=foreign_change" in each]
    expected = f"object={names[1]} length=2 found_length={told} runs=1"
    assert [expected in each for each in reports] == ([] if told is None else [True])
