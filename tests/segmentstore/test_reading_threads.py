"""Historical readers that wait for the chunk directory keep no flush waiting."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from store_world import World

from headrace import wire
from headrace.model.chunks import chunk_partition
from headrace.ports.metadata_store import Page

pytestmark = pytest.mark.anyio

SEGMENT, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
WRITER = 5
THREADS = 5
"""Of the loop on a task with one core."""

READERS = 4 * THREADS
WAIT_S = 20.0


class SlowDirectory:
    """Queries of one segment's runs are answered when the test says so."""

    def __init__(self, world: World) -> None:
        self.asked = threading.Semaphore(0)
        self.answered = threading.Event()
        self._honest = world.metadata.query
        world.metadata.query = self._query

    def _query(self, partition: str, **fields: Any) -> Page:
        if partition == chunk_partition(SEGMENT):
            self.asked.release()
            assert self.answered.wait(WAIT_S)
        return self._honest(partition, **fields)


async def test_readers_waiting_for_the_directory_do_not_block_flushes(make_world: type[World]):
    world = make_world(container_count=1)

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with world.running() as running:
        client = await running.connect()
        for segment in (SEGMENT, OTHER):
            await client.create(segment)
            await client.set_up(segment, WRITER)
            await client.append(WRITER, 1, b"stored")
        await running.flush()
        container = running.store.owned[0].container
        container.metadata.segments[SEGMENT].index.release_all()
        directory = SlowDirectory(world)
        readers = [await running.connect() for _ in range(READERS)]
        for reader in readers:
            reader.send(wire.ReadSegment(SEGMENT, 0, 6, "", 4))
            await reader.drain_to_server()
        assert await asyncio.to_thread(directory.asked.acquire, timeout=WAIT_S)
        await client.append(WRITER, 2, b"more")
        try:
            await running.flush()
            assert container.metadata.segments[OTHER].tiered.length == 10
        finally:
            directory.answered.set()
        for reader in readers:
            reply = await reader.receive()
            assert isinstance(reply, wire.SegmentRead)
            assert bytes(reply.data) == b"stored"
