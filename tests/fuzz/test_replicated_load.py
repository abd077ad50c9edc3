"""Load on stores that come and go: it ends when it is told to, at any step of its lanes."""

from __future__ import annotations

import asyncio

import pytest

from fuzz.lanes import Load
from fuzz.replicated_load import ReplicatedLoad
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.system_clock import SystemClock

pytestmark = pytest.mark.anyio


class DyingLane:
    """Its owner goes away, and one of its tasks takes a while to end."""

    def __init__(self) -> None:
        self.is_ending = asyncio.Event()
        self.may_end = asyncio.Event()
        self.lives = 0

    async def live(self, _load: Load) -> None:
        self.lives += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_slowly())
            await asyncio.sleep(0)
            raise ConnectionError("the store is gone")

    async def _end_slowly(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await self.may_end.wait()


async def test_load_ends_while_the_tasks_of_a_lane_end():
    lane = DyingLane()
    load = ReplicatedLoad(MemoryMetadataStore(), 1, [lane], SystemClock())
    await load.start()
    await lane.is_ending.wait()
    ending = asyncio.ensure_future(load.break_off())
    await asyncio.sleep(0)
    lane.may_end.set()
    await asyncio.wait([ending], timeout=5)
    assert ending.done()
    assert lane.lives == 1
