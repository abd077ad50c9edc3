"""Random histories of readers of a group, over everything real but AWS: they join and vanish across scales."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace.client import (
    AsyncGroupReader,
    AsyncReaderGroup,
    GroupReaderOptions,
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ScalingPolicy,
)

EVENTS = 240
KEYS = 8


class Readers:
    """The readers of one group, each in a task. It notes who got which event, in order."""

    def __init__(self, group: AsyncReaderGroup, random: Random) -> None:
        self.group = group
        self.random = random
        self.got: dict[str, list[tuple[int, int]]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.count = 0

    async def join(self) -> None:
        self.count += 1
        reader = await self.group.reader(f"r{self.count}", GroupReaderOptions(lease_s=1.0))
        self.got[reader.name] = []
        self.tasks[reader.name] = asyncio.get_running_loop().create_task(self._read(reader))

    async def vanish(self, name: str) -> None:
        """As if its process had been killed: it no longer reads, and others declare it dead."""
        await self.group.reader_offline(name)
        await self._stop(name)

    async def _stop(self, name: str) -> None:
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _read(self, reader: AsyncGroupReader) -> None:
        async with reader:
            async for event in reader:
                self.got[reader.name].append((event.segment_id, int(event.event)))
                await asyncio.sleep(self.random.random() / 200)

    async def run(self, *, crashes: bool) -> None:
        await self.join()
        for _ in range(6):
            await asyncio.sleep(self.random.random() / 10)
            names = list(self.tasks)
            if len(names) < 2 or self.random.random() < 0.5:
                await self.join()
            elif crashes:
                await self.vanish(self.random.choice(names))
        await asyncio.gather(*self.tasks.values())


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_random_readers_get_every_event(
    headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch, seed: int, crashes: bool
) -> None:
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(3))
    headrace.admin.update_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    changes = ([(0.0, 1.0)], [(0.0, 0.3), (0.3, 1.0)])
    with headrace.writer("shop", "orders") as writer:
        for number in range(EVENTS):
            if number in (80, 160):
                writer.flush()
                sealed = [segment.segment_id for segment in headrace.admin.segments("shop", "orders")]
                headrace.admin.scale_stream("shop", "orders", seal=sealed, ranges=changes[number // 80 - 1])
            writer.write(str(number).encode(), f"key-{number % KEYS}")
    headrace.admin.seal_stream("shop", "orders")
    reads = ReaderGroupConfiguration((GroupStream("shop", "orders"),), automatic_checkpoint_interval_ms=100)
    headrace.admin.reader_groups.create("shop", "mail", reads)

    async def run() -> Readers:
        async with await headrace._core.reader_group("shop", "mail") as group:
            readers = Readers(group, Random(seed))
            await readers.run(crashes=crashes)
            return readers

    readers = headrace._thread.run(run())
    delivered = Counter(number for got in readers.got.values() for _, number in got)
    assert set(delivered) == set(range(EVENTS))
    if not crashes:
        assert max(delivered.values()) == 1
        for got in readers.got.values():
            for key in range(KEYS):
                ours = [number for _, number in got if number % KEYS == key]
                assert ours == sorted(ours)
