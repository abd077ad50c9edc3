"""Work whose caller waits, or has gone: callbacks that the log calls when an operation other than an append is durable
or has failed, and writes that a caller's cancellation must not interrupt."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from headrace.model.errors import HeadraceError
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.settlements import Settle
from headrace.wire.connections.asynchronous import mark_retrieved

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
