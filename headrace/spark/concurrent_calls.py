"""Calls that wait for the controller, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from headrace.client.loop_thread import cancelling

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def calls_at_once(call: Callable[[T], R], items: Sequence[T], at_once: int) -> Iterator[list[Future[R]]]:
    """Calls with each item in threads of its own, up to `at_once` at a time. Yields the calls in the items' order.

    The end of the block ends all calls: those that wait do not begin, and requests of the client that run are cancelled
    within LOOP_CHECK_S. So no thread is left after an error or a KeyboardInterrupt, even if a request hangs.
    """
    is_over = threading.Event()

    def make(item: T) -> R:
        cancelling.set(is_over)
        return call(item)

    pool = ThreadPoolExecutor(at_once, thread_name_prefix="headrace-calls")
    try:
        yield [pool.submit(make, item) for item in items]
    finally:
        is_over.set()
        pool.shutdown(cancel_futures=True)


def results_at_once(call: Callable[[T], R], items: Sequence[T], at_once: int) -> list[R]:
    """The results of the call for each item, in the items' order.

    Raises:
        Exception: the error of the first item, in their order, whose call fails.
    """
    if len(items) < 2:
        return [call(item) for item in items]
    with calls_at_once(call, items, at_once) as calls:
        return [call.result() for call in calls]
