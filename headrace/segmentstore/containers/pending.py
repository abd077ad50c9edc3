"""Callbacks that the log calls when an operation is durable or has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.model.errors import HeadraceError
from headrace.segmentstore.containers.metadata import Settle
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.segment import Segment

AppendDone = Callable[[HeadraceError | None], None]


class PendingAppend:
    """Makes an append readable and reports it."""

    __slots__ = ("_done", "_end", "_segment")

    def __init__(self, segment: Segment, end: int, done: AppendDone) -> None:
        self._segment = segment
        self._end = end
        self._done = done

    def __call__(self, error: HeadraceError | None) -> None:
        segment = self._segment
        if error is None and self._end > segment.readable_length:
            segment.readable_length = self._end
        self._done(error)
        if segment.waiters:
            segment.wake_waiters()


class PendingOperation:
    """Makes any other operation visible to readers and resolves its future."""

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


def unwatched(_error: HeadraceError | None) -> None:
    """For operations without a waiting caller. A failure of the log stops the container in any case."""
