"""Workers of a simulation that do their pieces of work one after another, in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from fuzz.randomness import Random
from fuzz.watched_ports import Crash
from headrace.ports.clock import is_time_short

T = TypeVar("T")
_is_piece: ContextVar[bool] = ContextVar("is_piece", default=False)
"""Whether a piece of work of the present process is done; another process has another context."""


class ShuffledWorkers:
    """`ports.workers.Workers`: the items in an order that a seed decides.

    If one fails, the others are still done, unless the process dies. Work must not call for workers itself: with
    threads, each of 32 would start 32, more than a function may have.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        assert not _is_piece.get(), "a piece of work calls for workers"
        token = _is_piece.set(True)
        try:
            self._each(work, items)
        finally:
            _is_piece.reset(token)

    def _each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        shuffled, failures = list(items), list[Exception]()
        self._random.shuffle(shuffled)
        for item in shuffled:
            if is_time_short():
                break
            try:
                work(item)
            except Crash:
                raise
            except Exception as error:  # noqa: BLE001 - raised when all have ended
                failures.append(error)
        if failures:
            raise failures[0]
