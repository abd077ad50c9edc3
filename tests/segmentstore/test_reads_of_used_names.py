"""Reads of tier 2 during which a name of the segment gets to another one."""

from __future__ import annotations

import asyncio

import pytest
from store_world import RunningStore, World

from headrace import wire
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory

pytestmark = pytest.mark.anyio

TARGET, NAME = (f"scope/stream/{number}.#epoch.0" for number in range(2))
WRITER = 5


class HeldLookUps:
    """From `hold` on, look-ups of runs of NAME wait for `go_on` before they ask the directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        honest = ChunkDirectory.run_before

        async def run_before(directory: ChunkDirectory, name: str, offset: int):
            if name == NAME and not self.go_on.is_set():
                self.waiting += 1
                await self.go_on.wait()
            return await honest(directory, name, offset)

        monkeypatch.setattr(ChunkDirectory, "run_before", run_before)

    def hold(self) -> None:
        self.go_on.clear()


@pytest.fixture
def look_ups(monkeypatch: pytest.MonkeyPatch) -> HeldLookUps:
    return HeldLookUps(monkeypatch)


async def store(running: RunningStore, name: str, data: bytes) -> None:
    """A segment of which tier 2 has all bytes, and memory none."""
    client = await running.connect()
    await client.create(name)
    await client.set_up(name, WRITER)
    await client.append(WRITER, 1, data)
    await running.flush()
    running.store.owner_of(name).container.metadata.segments[name].index.release_all()


async def begin_read(running: RunningStore, look_ups: HeldLookUps, name: str, offset: int):
    reader = await running.connect()
    look_ups.hold()
    reader.send(wire.ReadSegment(name, offset, 100, "", 3))
    await running.until(lambda: look_ups.waiting == 1)
    return reader


async def test_a_read_does_not_go_on_in_the_next_segment_of_a_name(world: World, look_ups: HeldLookUps):
    """Its bytes would come with the end of the removed segment."""
    async with world.running() as running:
        client = await running.connect()
        await store(running, NAME, b"first")
        await client.call(wire.SealSegment(3, NAME))
        reader = await begin_read(running, look_ups, NAME, 0)
        await client.call(wire.DeleteSegment(4, NAME))
        await running.until(lambda: not running.store.owner_of(NAME).container.metadata.deletions)
        await store(running, NAME, b"other")
        look_ups.go_on.set()
        reply = await reader.receive()
        assert isinstance(reply, wire.SegmentRead)
        assert (bytes(reply.data), reply.end_of_segment) == (b"other", False)


async def test_a_read_does_not_take_bytes_of_the_next_source_of_a_name(world: World, look_ups: HeldLookUps):
    async with world.running() as running:
        client = await running.connect()
        await store(running, TARGET, b"own")
        await store(running, NAME, b"merged")
        owned = running.store.owner_of(TARGET)
        await owned.writer.stop()  # tier 2 keeps the merged bytes under the name of the source
        assert isinstance(await client.call(wire.MergeSegments(3, TARGET, NAME)), wire.SegmentsMerged)
        reader = await begin_read(running, look_ups, TARGET, len(b"own"))
        owned.writer.start()
        await running.flush()
        await running.until(lambda: not owned.container.metadata.deletions)
        await store(running, NAME, b"others")
        look_ups.go_on.set()
        reply = await reader.receive()
        assert isinstance(reply, wire.SegmentRead)
        assert bytes(reply.data) == b"merged"
