"""Queues the events of calls on an event loop in the order in which the calls began."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headrace.client.ownership import Ownership
from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.batch_accumulator import BatchAccumulator

if TYPE_CHECKING:
    from headrace.client.writing.column_writes import ColumnSlice

T = TypeVar("T")

BATCH_SLICE_EVENTS = 10_000
"""The number of events of a batch that are added before other writers get the lock."""


class OrderedCalls:
    """Adds events to an accumulator. A call waits while the buffer is full, and for all calls that began before it."""

    def __init__(self, accumulator: BatchAccumulator) -> None:
        self._accumulator = accumulator
        self._ownership = Ownership()
        self._changed = asyncio.Event()
        accumulator.listen(self._changed.set)
        self.filled_blocks = 0
        """The number of filled blocks for which the event loop has had a turn."""
        self.unfinished: deque[asyncio.Event] = deque()
        """Of the calls that have events to queue, in the order in which they began: set when it is a call's turn."""

    async def write(self, payload: bytes, routing_key: str | None) -> Ack:
        """Adds an event."""
        if not self.unfinished and self._accumulator.filled_blocks == self.filled_blocks:
            ack = self._accumulator.add(payload, routing_key)
            if ack is not None:
                return ack
        with self._call() as turn:
            return await self._added(turn, lambda: self._accumulator.add(payload, routing_key))

    async def write_batch(self, payloads: list[bytes], keys: Sequence[str | None]) -> Ack:
        """Adds checked events, with one key per event."""
        ack = self._accumulator.new_ack()
        with self._call() as turn:
            for first in range(0, len(payloads), BATCH_SLICE_EVENTS):
                last = first + BATCH_SLICE_EVENTS
                add = partial(self._accumulator.add_batch, payloads[first:last], keys[first:last], ack)
                await self._added(turn, add)
        self._accumulator.settle(ack)
        return ack

    async def write_slices(self, slices: Sequence[ColumnSlice]) -> Ack:
        """Adds the events of columns."""
        ack = self._accumulator.new_ack()
        with self._call() as turn:
            for each in slices:
                await self._added(turn, partial(each.add_to, self._accumulator, ack))
        self._accumulator.settle(ack)
        return ack

    async def flush(self) -> None:
        """Waits until all added events are acknowledged. Raises the error that ended the accumulator, if any."""
        await self._until(self._accumulator.is_empty)
        if self._accumulator.failure is not None:
            raise self._accumulator.failure

    @contextmanager
    def _call(self) -> Iterator[asyncio.Event]:
        """A call that queues events behind those of all calls that began before it."""
        self._ownership.check()
        turn = asyncio.Event()
        self.unfinished.append(turn)
        try:
            yield turn
        finally:
            self.unfinished.remove(turn)
            if self.unfinished:
                self.unfinished[0].set()  # no other one: thousands of calls may wait

    async def _added(self, turn: asyncio.Event, add: Callable[[], T | None]) -> T:
        """Repeats `add` until it has found room. A call that is cancelled before has added nothing.

        If blocks were filled, the event loop first gets a turn to send them: a loop of writes may never have to wait.
        """
        if self._accumulator.filled_blocks != self.filled_blocks:
            self.filled_blocks = self._accumulator.filled_blocks
            await asyncio.sleep(0)
        if self.unfinished[0] is not turn:
            await turn.wait()
        while not (added := add()):
            await self._until(self._accumulator.has_room)
        return added

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._ownership.check()
            self._changed.clear()
            await self._changed.wait()
