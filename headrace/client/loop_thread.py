"""Runs the asynchronous API for other threads: on a background thread of the client, or on the program's own loop."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

from headrace.adapters.standard_descriptors import occupy_closed_standard_descriptors
from headrace.client.closing import stop_tasks, wait_for_closings
from headrace.client.ownership import Unpicklable, forked, keep_in_children
from headrace.futures import mark_retrieved
from headrace.model.errors import IllegalStateError

T = TypeVar("T")
P = ParamSpec("P")

LOOP_CHECK_S = 1.0
"""How often a waiting thread looks whether the loop was closed, and the coroutine forgotten, or it was cancelled."""

cancelling: ContextVar[threading.Event | None] = ContextVar("headrace_cancelling", default=None)
"""The event with which another thread cancels the coroutines that the current context runs, also later ones."""


class _Call(Generic[T]):
    """A coroutine that the loop runs while a thread waits for it.

    The thread waits for a plain lock, which the loop only releases. A KeyboardInterrupt at the entry of a
    `threading.Condition`, which a `concurrent.futures.Future` has, can leave it locked: then the loop would wait for
    it for ever.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._problem: Exception | None = None
        self._running = threading.Lock()
        self._running.acquire()

    # The loop calls these methods.

    def start(self) -> None:
        try:
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
        except Exception as problem:  # noqa: BLE001 - raised in the thread
            self._coroutine.close()
            self._problem = problem
            self._running.release()
        else:
            self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is None:
            self._coroutine.close()
        else:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        mark_retrieved(task)  # the thread may have stopped waiting
        self._running.release()

    # The thread calls these methods.

    def has_ended(self, timeout_s: float) -> bool:
        """Waits for the end. Only called until it is true."""
        return self._running.acquire(timeout=timeout_s)

    def result(self) -> T:
        """The result, after the end. Raises the error of the coroutine, CancelledError if it was cancelled."""
        if self._problem is not None:
            raise self._problem
        assert self._task is not None, "it has ended, so it was started"
        try:
            return self._task.result()
        except asyncio.CancelledError:
            raise CancelledError from None


class LoopCaller(Unpicklable):
    """Runs coroutines on an event loop for threads that are not the loop's, in the process that made the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._process = os.getpid()
        keep_in_children(self)

    @property
    def is_of_parent(self) -> bool:
        """Whether this process is a child that a fork has made since: the loop runs in the parent only."""
        return self._process != os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for its result. A KeyboardInterrupt in this thread cancels it.

        Raises:
            CancelledError: another thread has cancelled the coroutine, see `cancelling`.
            IllegalStateError: code "loop_closed": the loop was closed. Code "opened_before_fork": another process runs
                it.
        """
        if self.is_of_parent:
            coroutine.close()
            raise forked()
        if _is_cancelled():
            coroutine.close()
            raise CancelledError
        call = _Call(coroutine)
        try:
            try:
                self._loop.call_soon_threadsafe(call.start)
            except RuntimeError as error:
                raise _loop_closed() from error
            while not call.has_ended(LOOP_CHECK_S):
                if self._loop.is_closed():
                    if call.has_ended(0):
                        break
                    raise _loop_closed()
                if _is_cancelled():
                    raise CancelledError
        except BaseException:
            try:
                self._loop.call_soon_threadsafe(call.cancel)
            except RuntimeError:  # the loop is closed
                coroutine.close()
            raise
        return call.result()

    def check_process(self) -> None:
        """Raises IllegalStateError in a child process. Call it before a lock, which the parent may have held."""
        if self.is_of_parent:
            raise forked()

    def end(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Runs a coroutine that closes something. In a child process it does nothing: the parent still uses it."""
        if self.is_of_parent:
            coroutine.close()
        else:
            self.run(coroutine)

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
        self._ending = threading.RLock()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="headrace-client", daemon=True)
        self._thread.start()

    def end_once(self, end: Callable[[], None]) -> None:
        """Calls `end`, which ends with `close`, unless the loop is closed. After an interrupt it may be called again.

        Waits for a call in another thread. A call in a signal handler, which came during `end`, returns at once.

        Raises:
            IllegalStateError: code "own_thread": the loop runs the caller, which would wait for itself.
        """
        if self.is_of_parent:
            return
        if threading.current_thread() is self._thread:
            raise IllegalStateError("the client's own thread cannot close it: use another", code="own_thread")
        with self._ending:
            if self._is_ending or self._loop.is_closed():
                return
            self._is_ending = True
            try:
                end()
            finally:
                self._is_ending = False

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
        await wait_for_closings()
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


def _renew_resolver() -> None:
    """Has libuv start its threads again, for the exit of a child process, which waits for the end of the parent's.

    Without this such a child dies of a segmentation fault, if the parent has resolved a name.
    """
    with suppress(OSError), closing(_new_loop()) as loop:
        loop.run_until_complete(loop.getaddrinfo("localhost", None))


def _after_fork_in_child() -> None:
    if "uvloop" in sys.modules:
        atexit.register(_renew_resolver)


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Resolver(ThreadPoolExecutor):
    """Resolves names for asyncio's loop, also at the exit of the interpreter, when writers are flushed.

    By then pools take no more work, so that the loop could connect to no store. Its own thread then waits for the name.
    """

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError:  # the interpreter ends
            done: Future[T] = Future()
            try:
                done.set_result(function(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                done.set_exception(error)
            return done


def _new_loop() -> asyncio.AbstractEventLoop:
    occupy_closed_standard_descriptors()
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        loop = make()
        loop.set_default_executor(_Resolver(thread_name_prefix="headrace-resolver"))
        return loop
    make = uvloop.new_event_loop
    return make()
