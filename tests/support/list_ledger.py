"""A ledger that is a list, logs of operations on it, and what a reader finds in its entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec import data_frames
from headrace.model.errors import FencedError, HeadraceError
from headrace.ports.ledger import Ledger
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.operation_log import FRAME_BYTES_MIN, FrameReader, OperationLog, OrderingClock
from headrace.segmentstore.lease_gate import LeaseGate


class ListLedger:
    """Entries in a list, durable when `acknowledge` says so."""

    held_bytes = 0

    def __init__(self, entry_bytes_max: int = FRAME_BYTES_MIN) -> None:
        self.entry_bytes_max = entry_bytes_max
        self.entries: list[bytes] = []
        self.failure: Exception | None = None
        self._undone: list[Callable[[Exception | None], None]] = []
        self.unreleased: list[Callable[[], None] | None] = []
        self.acknowledged = 0

    @property
    def next_entry(self) -> int:
        return len(self.entries)

    def append(
        self, parts: Any, done: Callable[[Exception | None], None], released: Callable[[], None] | None = None
    ) -> int:
        if self.failure is not None:
            raise self.failure
        entry = b"".join(parts)
        assert len(entry) <= self.entry_bytes_max
        self.entries.append(entry)
        self._undone.append(done)
        self.unreleased.append(released)
        return len(self.entries) - 1

    def acknowledge(self, count: int = 1, error: Exception | None = None) -> None:
        for _ in range(count):
            self.acknowledged += 1
            self._undone.pop(0)(error)

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            released = self.unreleased.pop(0)
            if released is not None:
                released()

    def truncate(self, before_entry: int) -> None:
        self.append((), lambda _error: None)

    def close(self) -> None:
        self.failure = self.failure or FencedError("the ledger is closed")


def framed(operation: data_frames.Operation, sequence: int = 0) -> list[bytes | memoryview]:
    """The parts of an entry with one operation, the only one in its frame."""
    parts = data_frames.encode_operation(operation)
    header = data_frames.encode_frame_header(data_frames.FrameHeader(sequence, sequence + 1, 0))
    return [header, data_frames.encode_operation_length(sum(map(len, parts))), *parts]


def turn() -> Awaitable[None]:
    """Let the loop turn once: what gathered until then is a frame."""
    return asyncio.sleep(0)


def open_log(
    ledger: ListLedger,
    reader: FrameReader | None = None,
    on_failure: Callable[[HeadraceError], None] | None = None,
    *,
    gate: LeaseGate | None = None,
    pool: BlockPool | None = None,
) -> OperationLog:
    """A log that begins, or goes on where the reader has come to."""
    clock = OrderingClock(ManualClock())
    clock.observe(reader.last_ordering if reader else 0)
    next_sequence = reader.next_sequence if reader else 0
    return OperationLog(cast(Ledger, ledger), clock, next_sequence, gate, on_failure, pool=pool)


def read_all(entries: list[bytes]) -> tuple[list[tuple[int, bytes]], FrameReader]:
    """The operations, each with the entry that it began in, and the reader behind them."""
    reader = FrameReader(0)
    operations = [
        (logged.entry, bytes(logged.content))
        for number, entry in enumerate(entries)
        for logged in reader.read(number, memoryview(entry))
    ]
    return operations, reader
