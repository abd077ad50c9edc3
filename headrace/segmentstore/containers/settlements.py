"""What becomes visible to readers when an operation is durable. This module owns the durable state of all segments.

The log calls the functions in the order of their operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.futures import mark_retrieved
from headrace.model.errors import HeadraceError
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.segment import Segment

Settle = Callable[[], None]
"""Makes the effect of an operation visible to readers; called when the operation is durable."""

AppendDone = Callable[[HeadraceError | None], None]


class PendingAppend:
    """Makes an append readable and reports it."""

    __slots__ = ("_done", "_durable", "_end")

    def __init__(self, segment: Segment, end: int, done: AppendDone) -> None:
        self._durable = segment.durable
        self._end = end
        self._done = done

    def __call__(self, error: HeadraceError | None) -> None:
        durable = self._durable
        if error is None and self._end > durable.length:
            durable.length = self._end
        self._done(error)
        if durable.waiters:
            durable.wake_waiters()


def settle_replayed_append(segment: Segment, end: int) -> None:
    """Make an append readable that a recovery has found in the log."""
    segment.durable.length = end


def nothing() -> None:
    """Make nothing visible: the operation has no effect for readers."""


def in_turn(settles: Sequence[Settle]) -> Settle:
    def settle() -> None:
        for each in settles:
            each()

    return settle


def of_seal(segment: Segment) -> Settle:
    def settle() -> None:
        segment.durable.sealed = True
        segment.durable.wake_waiters()

    return settle


def of_truncation(segment: Segment, offset: int) -> Settle:
    def settle() -> None:
        durable = segment.durable
        durable.start_offset = max(durable.start_offset, offset)
        # Truncated bytes that tier 2 lacks are still flushed: without them, runs could overlap after a crash.
        segment.index.release_before(min(segment.accepted.start_offset, segment.tiered.length))
        segment.durable.wake_waiters()

    return settle


def of_merge(target: Segment, source: Segment, end: int) -> Settle:
    """`end` is the offset of the target behind the merged bytes."""

    def settle() -> None:
        target.durable.length = max(target.durable.length, end)
        settle_removal(source)
        target.durable.wake_waiters()

    return settle


def of_removal(segment: Segment) -> Settle:
    return lambda: settle_removal(segment)


def settle_removal(segment: Segment) -> None:
    """Release the bytes of a segment that does not exist any more, and wake its waiters."""
    segment.index.release_all()
    segment.durable.wake_waiters()


# Work whose caller waits, or has gone: callbacks that the log calls when an operation other than an append is durable
# or has failed, and writes that a caller's cancellation must not interrupt.

_T = TypeVar("_T")


class PendingOperation:
    """Makes an operation visible to readers and resolves its future."""

    __slots__ = ("future", "settle")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.settle: Settle | None = None

    def __call__(self, error: HeadraceError | None) -> None:
        if error is not None:
            if not self.future.done():
                self.future.set_exception(error)
            return
        if self.settle is not None:
            self.settle()
        resolve(self.future)


async def undisturbed(work: asyncio.Future[_T]) -> _T:
    """The result of work that goes on if the caller is cancelled. Its error is not reported then."""
    work.add_done_callback(mark_retrieved)
    return await asyncio.shield(work)


def unwatched(_error: HeadraceError | None) -> None:
    """For operations without a waiting caller. A failure of the log stops the container in any case."""
