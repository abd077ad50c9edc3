"""A segment is removed, or its name asked for, while its runs are behind a link: the log may be lost at any time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from lost_volumes import entry_count, killed, lose_volume, snapshot, tell_no_more
from segment_writes import OTHER, created_segment, write
from store_world import RunningStore, WireClient, World

from headrace import wire
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Delete
from headrace.segmentstore.tiering import chunk_directory
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory

pytestmark = pytest.mark.anyio

OLDER, TARGET, SOURCE = (f"scope/stream/{number}.#epoch.0" for number in range(3))
FIRST, PIECES = b"first", [b"%d" % number for number in range(7)]
WHOLE = FIRST + b"".join(PIECES)
MERGE = wire.MergeSegments(3, TARGET, SOURCE)
MOVE_LINKED = ChunkDirectory.move_linked


@pytest.fixture
def world(make_world: type[World], monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(chunk_directory, "MOVES_PER_WRITE_MAX", 2)
    monkeypatch.setattr(chunk_directory, "LINKED_MOVES_PER_WRITE_MAX", 2)
    return make_world(container_count=1)


@asynccontextmanager
async def linked(world: World, monkeypatch: pytest.MonkeyPatch, told: Sequence[str]) -> AsyncIterator[RunningStore]:
    """A store that has the source's runs behind a link of the target, and cannot move them until `MOVE_LINKED` is back.

    It is killed at the end, and its log lost.
    `told`: which of both segments tier 2's snapshot has, as they were created.
    """
    tried = []

    async def move_linked(_directory, target, _link, _runs):
        tried.append(target)
        raise UnavailableError("no answer")

    async with killed(world) as running:
        client = await created_segment(running, OLDER, b"older")
        for name in told:
            await client.create(name)
        await snapshot(running)
        tell_no_more(running)
        for name in {TARGET, SOURCE}.difference(told):
            await client.create(name)
        await write(client, TARGET, [FIRST])
        for number, piece in enumerate(PIECES):
            await write(client, SOURCE, [piece], writer=OTHER, first=number)
            await running.flush()
        monkeypatch.setattr(ChunkDirectory, "move_linked", move_linked)
        assert isinstance(await client.call(MERGE), wire.SegmentsMerged)
        await running.until(lambda: hurry(running) and bool(tried))
        yield running
    monkeypatch.setattr(ChunkDirectory, "move_linked", MOVE_LINKED)
    lose_volume(world)


def hurry(running: RunningStore) -> bool:
    running.world.clock.advance(2e6)
    return True


async def removed(client: WireClient, running: RunningStore, *names: str) -> None:
    for name in names:
        assert isinstance(await client.call(wire.DeleteSegment(4, name)), wire.SegmentDeleted)
    await running.until(lambda: hurry(running) and not running.store.owned[0].container.metadata.deletions)


async def test_linked_runs_outlive_their_removed_target(world: World, monkeypatch: pytest.MonkeyPatch):
    honest = ChunkDirectory.remove
    refused = []

    async def remove(directory, name, runs, links=()):
        if name == TARGET:
            refused.append(name)
            raise UnavailableError("no answer")
        return await honest(directory, name, runs, links)

    monkeypatch.setattr(ChunkDirectory, "remove", remove)
    async with linked(world, monkeypatch, [TARGET, SOURCE]) as running:
        await (await running.connect()).call(wire.DeleteSegment(4, TARGET))
        monkeypatch.setattr(ChunkDirectory, "move_linked", MOVE_LINKED)
        await running.until(lambda: hurry(running) and len(refused) > 1)
    monkeypatch.setattr(ChunkDirectory, "remove", honest)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(TARGET) == WHOLE  # tier 2 had not been told of the removal
        await removed(client, running, TARGET)
        assert entry_count(world, TARGET) == entry_count(world, SOURCE) == 0


@pytest.mark.parametrize(("asked_first", "told"), [(TARGET, []), (SOURCE, []), (SOURCE, [SOURCE])])
async def test_name_behind_an_unknown_link_can_be_used(
    world: World, monkeypatch: pytest.MonkeyPatch, asked_first: str, told: list[str]
):
    async with linked(world, monkeypatch, told):
        pass
    async with world.running() as running:
        client = await running.connect()
        if asked_first == TARGET:
            assert await client.read_all(TARGET) == WHOLE
        await client.create(SOURCE)
        await write(client, SOURCE, PIECES[::-1])
    lose_volume(world)
    async with world.running() as running:
        client = await running.connect()
        assert await client.read_all(TARGET) == WHOLE
        assert await client.read_all(SOURCE) == b"".join(PIECES[::-1])
        await removed(client, running, SOURCE, TARGET)
        assert entry_count(world, TARGET) == entry_count(world, SOURCE) == 0


async def test_link_to_lost_runs_goes_with_its_segment(world: World, monkeypatch: pytest.MonkeyPatch):
    async with linked(world, monkeypatch, [TARGET, SOURCE]) as running:
        client = await running.connect()
        # Its runs get lost when it is removed. A merge into a segment that exists would stop the container.
        assert isinstance(await client.call(wire.DeleteSegment(4, TARGET)), wire.SegmentDeleted)
        first = world.metadata.query(f"chunks/{SOURCE}", limit=1).records[0]
        world.metadata.write(Delete(first.key, first.version))
        monkeypatch.setattr(ChunkDirectory, "move_linked", MOVE_LINKED)
        await running.until(lambda: hurry(running) and not running.store.owned[0].container.metadata.deletions)
        assert entry_count(world, TARGET) == entry_count(world, SOURCE) == 0
        assert not world.failures
        await client.create(SOURCE)


async def test_link_to_lost_runs_costs_no_other_segment(world: World, monkeypatch: pytest.MonkeyPatch):
    """A restoration fails for no segment because of what another one has lost."""
    async with linked(world, monkeypatch, [SOURCE]):
        first = world.metadata.query(f"chunks/{SOURCE}", limit=1).records[0]
    world.metadata.write(Delete(first.key, first.version))
    async with world.running() as running:
        assert await (await running.connect()).read_all(OLDER) == b"older"
