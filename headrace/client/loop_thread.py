"""The background thread on which the synchronous API runs the asynchronous one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread. It is uvloop's if that is installed, which is about twice as fast."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or _new_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for its result. A KeyboardInterrupt in this thread cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, start: Callable[[], AsyncIterator[T]], page: int) -> Iterator[T]:
        """Yields the items of an asynchronous iterator. It fetches `page` at a time, as a change of threads is slow."""
        source = start()
        while items := self.run(_items(source, page)):
            yield from items

    def close(self) -> None:
        """Cancels all running tasks and ends the thread."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_tasks())
            self._loop.close()


async def _end_tasks() -> None:
    """Cancel all other tasks, and those that they start while they end."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
