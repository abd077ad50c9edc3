"""Acknowledgements, and how threads wait for them, so that a KeyboardInterrupt in a wait leaves the lock free."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from headrace.client.ownership import Unpicklable, forked
from headrace.model.arguments import check_argument
from headrace.model.errors import UnavailableError


class AwaitedChanges(Unpicklable):
    """A `lock`, and the threads that wait for what changes under it.

    A `threading.Condition` is entered, left and waited for in Python code, where an interrupt can leave its lock locked
    for ever or unlocked too early. Here each thread waits, without the lock, for a plain lock of its own.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: list[threading.Lock] = []
        self._is_of_parent = False

    def leave_to_parent(self) -> None:
        """In a child process after a fork nothing changes any more, and the lock may be held for ever: replaces it."""
        self.lock = threading.RLock()
        self._waiting = []
        self._is_of_parent = True

    def check(self) -> None:
        """Raises IllegalStateError in a child process after a fork."""
        if self._is_of_parent:
            raise forked()

    def wait_for(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits until the condition holds; False after `timeout_s`. The caller must not hold the lock.

        Raises:
            IllegalStateError: code "opened_before_fork": it does not hold, and nothing changes in this process.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.lock:
                if holds():
                    return True
                self.check()
                waiting = threading.Lock()
                waiting.acquire()
                self._waiting.append(waiting)
            if not waiting.acquire(timeout=-1 if deadline_s is None else _left_s(deadline_s)):
                with self.lock:
                    if waiting in self._waiting:
                        self._waiting.remove(waiting)
                    return holds()

    def wake_all(self) -> None:
        """Lets all waiting threads look at their conditions again. The caller holds the lock."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.release()


class Ack:
    """The acknowledgement of one or more events: done when each of them is durable or has failed.

    All events of a block share one acknowledgement, so it costs little per event. Wait with `result()` in a thread, or
    with `await` on an event loop.
    """

    __slots__ = ("_callbacks", "_changed", "_error", "_parts")

    def __init__(self, changed: AwaitedChanges) -> None:
        self._changed = changed
        self._parts = 1
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Ack], object]] = []

    @property
    def done(self) -> bool:
        return self._parts == 0

    def exception(self) -> BaseException | None:
        """The error of the events that failed. None if all are durable, and while the outcome is open."""
        return self._error

    def result(self, timeout_s: float | None = None) -> None:
        """Returns when the events are durable.

        Raises:
            UnavailableError: `timeout_s` has passed; the events may still become durable.
            HeadraceError: the events will not be acknowledged, for example SealedError if the stream is sealed.
        """
        check_argument("result: timeout_s", timeout_s, float | None)
        if not self._changed.wait_for(lambda: self._parts == 0, timeout_s):
            raise UnavailableError(f"events were not acknowledged within {timeout_s} s; the writer retries them")
        if self._error is not None:
            raise self._error

    def add_done_callback(self, callback: Callable[[Ack], object]) -> None:
        """Calls `callback(ack)` when the acknowledgement is done, at once if it already is.

        Otherwise the client's event loop calls it, so the callback must not block.
        """
        with self._changed.lock:
            if self._parts:
                self._callbacks.append(callback)
                return
        callback(self)

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done:
            self._changed.check()
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()
        self.add_done_callback(lambda _: loop.call_soon_threadsafe(finished.set))
        yield from finished.wait().__await__()
        if self._error is not None:
            raise self._error

    # Only the accumulator calls the following methods, under its lock.

    def add_part(self) -> None:
        """Counts one more block that holds events of this acknowledgement."""
        self._parts += 1

    def part_done(self, error: BaseException | None = None) -> bool:
        """Records that a block is acknowledged or has failed. Returns whether it was the last one."""
        if error is not None and self._error is None:
            self._error = error
        self._parts -= 1
        return self._parts == 0

    def take_callbacks(self) -> list[Callable[[Ack], object]]:
        callbacks, self._callbacks = self._callbacks, []
        return callbacks


def _left_s(deadline_s: float) -> float:
    """The time until then, as a lock accepts it: not negative, and not more than centuries."""
    return min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX)
