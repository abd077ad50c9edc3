"""Lets threads wait for changes under a lock, so that a KeyboardInterrupt in a wait leaves the lock free."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.client.ownership import Unpicklable, forked


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


def _left_s(deadline_s: float) -> float:
    """The time until then, as a lock accepts it: not negative, and not more than centuries."""
    return min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX)
