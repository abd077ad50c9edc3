"""Callbacks that the log calls when an operation other than an append is durable or has failed."""

from __future__ import annotations

import asyncio

from headrace.model.errors import HeadraceError
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.settlements import Settle


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


def unwatched(_error: HeadraceError | None) -> None:
    """For operations without a waiting caller. A failure of the log stops the container in any case."""
