"""A segment container on a ledger that is a list."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from list_ledger import ListLedger, turn

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.errors import HeadraceError
from headrace.model.segment_attributes import NO_VALUE
from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Ledger
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.container_rates import ContainerRates
from headrace.segmentstore.containers.idle_segments import EvictedSegment
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 5


class Made:
    """A container whose log is durable when `acknowledge` says so, or at once in `done`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ledger = ListLedger(1 << 16)
        self.log_bytes = 0
        self.failures: list[HeadraceError] = []
        self.records: list[str] = []
        """The names that were looked up. Each look-up ends once `found` is set: with `record`, which may be raised."""
        self.record: EvictedSegment | Exception | None = None
        self.found = asyncio.Event()
        self.found.set()
        pool, rates = BlockPool(1 << 20, 64 << 10), ContainerRates(self.clock, None)
        self.container = SegmentContainer(
            3,
            1,
            ContainerMetadata(3, pool, rates.watch),
            self._open_log,
            pool,
            self.clock,
            lambda _container, error: self.failures.append(error),
            LogRoom(self._space, list),
            rates,
            self._find_record,
        )

    def _open_log(self, failed: Callable[[HeadraceError], None]) -> OperationLog:
        return OperationLog(cast("Ledger", self.ledger), OrderingClock(self.clock), on_failure=failed)

    def _space(self) -> LogSpace:
        return LogSpace(self.log_bytes, 0, 1 << 20, 1 << 10)

    async def _find_record(self, name: str) -> EvictedSegment | None:
        self.records.append(name)
        await self.found.wait()
        if isinstance(self.record, Exception):
            raise self.record
        return self.record

    async def acknowledge(self) -> None:
        """Make everything that was logged durable."""
        for _ in range(5):  # the operation is logged, its frame is submitted, the waiters go on
            await turn()
            self.ledger.acknowledge(len(self.ledger.entries) - self.ledger.acknowledged)
        await turn()

    async def done(self, request: Awaitable[Any]) -> Any:
        running = asyncio.ensure_future(request)
        await self.acknowledge()
        assert running.done()
        return running.result()

    async def is_held_until_durable(self, request: Awaitable[Any]) -> asyncio.Future[Any]:
        """Log an operation and make the request behind it, which ends when this operation is durable."""
        self.container.log.append([b"before"], lambda _error: None)
        running = asyncio.ensure_future(request)
        for _ in range(5):
            await turn()
        assert not running.done()
        await self.acknowledge()
        assert running.done()
        return running

    def append(
        self,
        data: bytes = b"abc",
        *,
        name: str = SEGMENT,
        previous: int = NO_VALUE,
        number: int = 1,
        count: int = 1,
        **options: Any,
    ) -> int:
        container, told = self.container, list[HeadraceError | None]()
        reserved = container.pool.reserve(len(data))
        assert reserved is not None
        for part in reserved.parts:
            part[:], data = data[: len(part)], data[len(part) :]
        segment, writer = container.metadata.segments[name], options.pop("writer", WRITER)
        return container.append(segment, writer, previous, number, count, reserved, told.append, **options)
