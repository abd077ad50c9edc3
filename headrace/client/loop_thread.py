"""Runs the asynchronous API for other threads: on a background thread of the client, or on the program's own loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from headrace.client.closing import stop_tasks
from headrace.model.errors import IllegalStateError

T = TypeVar("T")

LOOP_CHECK_S = 1.0
"""How often a waiting thread looks whether the loop was closed, and the coroutine forgotten, or it was cancelled."""

cancelling: ContextVar[threading.Event | None] = ContextVar("headrace_cancelling", default=None)
"""The event with which another thread cancels the coroutines that the current context runs, also later ones."""


class LoopCaller:
    """Runs coroutines on an event loop for threads that are not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for its result. A KeyboardInterrupt in this thread cancels it.

        Raises:
            CancelledError: another thread has cancelled the coroutine, see `cancelling`.
            IllegalStateError: code "loop_closed": the loop was closed.
        """
        if _is_cancelled():
            coroutine.close()
            raise CancelledError
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise _loop_closed() from error
        try:
            while True:
                try:
                    return future.result(LOOP_CHECK_S)
                except TimeoutError:
                    if future.done():
                        return future.result()  # it came this moment, or is the coroutine's own TimeoutError
                    if self._loop.is_closed():
                        coroutine.close()
                        raise _loop_closed() from None
                    if _is_cancelled():
                        raise CancelledError from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, start: Callable[[], AsyncIterator[T]], page: int) -> Iterator[T]:
        """Yields the items of an asynchronous iterator. It fetches `page` at a time, as a change of threads is slow."""
        source = start()
        while items := self.run(_items(source, page)):
            yield from items


class LoopThread(LoopCaller):
    """An event loop in a daemon thread. It is uvloop's if that is installed, which is about twice as fast."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop or _new_loop())
        self._stopped = asyncio.Event()
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = threading.Thread(target=self._run, name="headrace-client", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancels all running tasks and ends the thread. After an interrupt it may be called again."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stopped.set)
        with self._running:  # up to Python 3.12 an interrupted `join` takes the thread for ended
            pass
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._until_stopped())
        finally:
            self._loop.close()
            self._running.release()

    async def _until_stopped(self) -> None:
        await self._stopped.wait()
        await _end_tasks()


def _is_cancelled() -> bool:
    event = cancelling.get()
    return event is not None and event.is_set()


def _loop_closed() -> IllegalStateError:
    return IllegalStateError("the event loop was closed: close what uses it first", code="loop_closed")


async def _end_tasks() -> None:
    """Cancel all other tasks, and those that they start while they end."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await stop_tasks(tasks)


async def _items(source: AsyncIterator[T], most: int) -> list[T]:
    items: list[T] = []
    while len(items) < most:
        try:
            items.append(await anext(source))
        except StopAsyncIteration:
            break
    return items


def _new_loop() -> asyncio.AbstractEventLoop:
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        return make()
    make = uvloop.new_event_loop
    return make()
