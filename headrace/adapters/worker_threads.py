"""Workers that are threads: for work that waits for other services most of the time."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import length_hint
from threading import Lock
from typing import TypeVar

from headrace.ports.clock import is_time_short

T = TypeVar("T")


class WorkerThreads:
    """`ports.workers.Workers` with up to `count` threads at a time, but no more than there are items to do."""

    def __init__(self, count: int) -> None:
        self._count = count

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        shared = _Shared(items)
        count = min(self._count, max(1, length_hint(items, self._count)))

        def work_through() -> None:
            for item in shared:
                work(item)

        with ThreadPoolExecutor(max_workers=count) as pool:
            # The deadline is in the context, which threads do not inherit.
            futures = [pool.submit(contextvars.copy_context().run, work_through) for _ in range(count)]
        for future in futures:
            future.result()


class _Shared(Iterator[T]):
    """The items in order, each for one thread, until time is short."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._lock = Lock()

    def __next__(self) -> T:
        with self._lock:
            if is_time_short():
                raise StopIteration
            return next(self._items)
