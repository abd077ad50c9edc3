"""The process and the event loop that own connections. Another process or loop must not use them.

A child process after a fork has copies of the client's objects, but not its thread, and shares its sockets. Calls in
the child would wait for ever, or disturb the parent. The same is true of an event loop that has ended.
"""

from __future__ import annotations

import asyncio
import os
from typing import NoReturn
from weakref import WeakSet

from headrace.model.errors import IllegalStateError

FORKED = "opened_before_fork"
OTHER_LOOP = "other_event_loop"

_shared: WeakSet[object] = WeakSet()
_kept: list[object] = []
"""What a child process must not collect: the end of a socket would change the selector that it shares."""


class Ownership:
    """Remembers the process at once, and the event loop at the first check."""

    __slots__ = ("_loop", "_process")

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises IllegalStateError if another process or event loop is the owner. Call it on an event loop."""
        if self._process != os.getpid():
            raise forked()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise other_loop()

    def has_gone(self) -> bool:
        """Whether there is nothing to close here: after a fork, or if the owner's event loop was closed."""
        return self._process != os.getpid() or (self._loop is not None and self._loop.is_closed())


class Unpicklable:
    """An object that only the process that made it can use."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise not_picklable(self)


def not_picklable(shared: object) -> IllegalStateError:
    return IllegalStateError(
        f"{type(shared).__name__} belongs to the process that opened it, and cannot be pickled or copied: connect in "
        "each process",
        code="not_picklable",
    )


def forked() -> IllegalStateError:
    return IllegalStateError("opened before a fork: connect in each process", code=FORKED)


def other_loop() -> IllegalStateError:
    return IllegalStateError(
        "opened in another event loop, for example in another `asyncio.run`: make a client in each of them",
        code=OTHER_LOOP,
    )


def keep_in_children(shared: object) -> None:
    """Has a child process keep the object until its end, because it refers to sockets of this process."""
    _shared.add(shared)


os.register_at_fork(after_in_child=lambda: _kept.extend(_shared))
