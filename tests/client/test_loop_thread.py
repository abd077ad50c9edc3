"""The end of the thread on which the synchronous API runs: nothing is left of its loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import threading
import warnings
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import NoReturn

import pytest

from headrace.client import loop_thread
from headrace.client.loop_thread import LoopCaller, LoopThread, cancelling
from headrace.model.errors import IllegalStateError


@pytest.fixture
def thread() -> LoopThread:
    gc.collect()  # Python complains about the garbage of other tests before, not in `warned`
    return LoopThread(asyncio.new_event_loop())


def warned(thread: LoopThread) -> list[str]:
    """What Python complains about while the thread ends."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread.close()
        gc.collect()
    return [str(each.message) for each in caught]


def test_tasks_that_begin_while_others_end_end_as_well(thread: LoopThread):
    ended: list[str] = []

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("last")

    async def first() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.append(asyncio.ensure_future(last()))
            await asyncio.sleep(0)  # it begins
            ended.append("first")

    async def begin() -> None:
        tasks.append(asyncio.ensure_future(first()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Future[None]] = []
    thread.run(begin())
    assert warned(thread) == []
    assert ended == ["first", "last"]


def test_a_thread_does_not_wait_for_a_loop_that_was_closed(monkeypatch: pytest.MonkeyPatch):
    """A loop that ends at the wrong moment never runs what was handed to it."""
    monkeypatch.setattr(loop_thread, "LOOP_CHECK_S", 0.01)
    loop = asyncio.new_event_loop()
    failed: list[str] = []

    def wait() -> None:
        try:
            LoopCaller(loop).run(asyncio.sleep(0))
        except IllegalStateError as error:
            failed.append(error.specific_code)

    thread = threading.Thread(target=wait)
    thread.start()
    while not loop._ready:  # type: ignore[attr-defined]
        threading.Event().wait(0.001)
    loop.close()
    thread.join()
    wait()
    assert failed == ["loop_closed"] * 2


def test_a_coroutine_may_time_out(thread: LoopThread, monkeypatch: pytest.MonkeyPatch):
    """Its own TimeoutError is not taken for that of the waiting."""
    monkeypatch.setattr(loop_thread, "LOOP_CHECK_S", 0.01)

    async def time_out() -> None:
        await asyncio.sleep(0.05)
        raise TimeoutError("of the coroutine")

    with pytest.raises(TimeoutError, match="of the coroutine"):
        thread.run(time_out())
    assert warned(thread) == []


def test_a_result_that_comes_as_the_waiting_is_checked(thread: LoopThread, monkeypatch: pytest.MonkeyPatch):
    """A call that ends just before the loop still returns its result."""
    thread.run(asyncio.sleep(0))  # a loop that has not begun would cancel the call
    monkeypatch.setattr(loop_thread, "LOOP_CHECK_S", 0.01)
    may_end = asyncio.Event()
    is_closed = thread._loop.is_closed

    def ends_now() -> bool:
        monkeypatch.setattr(thread._loop, "is_closed", is_closed)
        thread._loop.call_soon_threadsafe(may_end.set)
        thread.close()
        return is_closed()

    async def answer() -> str:
        await may_end.wait()
        return "answer"

    monkeypatch.setattr(thread._loop, "is_closed", ends_now)
    assert thread.run(answer()) == "answer"


def test_error_of_a_task_factory_ends_the_call(thread: LoopThread):
    def fail(*_: object, **__: object) -> NoReturn:
        raise ValueError("no tasks")

    thread.run(asyncio.sleep(0))  # the loop's own task has begun
    coroutine = asyncio.sleep(0)
    with ThreadPoolExecutor(1) as pool:
        thread._loop.set_task_factory(fail)
        call = pool.submit(thread.run, coroutine)
        ended, _ = wait([call], 10)
        thread._loop.set_task_factory(None)
        if not ended:
            thread.close()  # lets the call end
        with pytest.raises(ValueError, match="no tasks"):
            call.result()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert warned(thread) == []


def test_error_of_a_cancelled_coroutine_is_not_logged(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(loop_thread, "LOOP_CHECK_S", 0.01)
    began = threading.Event()

    async def fail() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    def run(event: threading.Event) -> None:
        cancelling.set(event)
        thread.run(fail())

    event = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run, event)
        assert began.wait(60)
        event.set()
        with pytest.raises(CancelledError):
            call.result(30)
    del call  # it holds the task
    assert warned(thread) == []
    assert caplog.records == []


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_another_thread_cancels_a_coroutine(thread: LoopThread, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool):
    monkeypatch.setattr(loop_thread, "LOOP_CHECK_S", 0.01)
    began, cancelled = threading.Event(), threading.Event()

    async def wait() -> str:
        began.set()
        try:
            await asyncio.sleep(60 if is_cancelled else 0.1)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "done"

    def run(event: threading.Event) -> str:
        cancelling.set(event)
        return thread.run(wait())

    event = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run, event)
        assert began.wait(60)
        if is_cancelled:
            event.set()
            with pytest.raises(CancelledError):
                call.result(30)
            assert cancelled.wait(60)
            with pytest.raises(CancelledError):
                pool.submit(run, event).result(30)
        else:
            assert call.result(30) == "done"
    thread.close()


class SlowEnd:
    """A task of the thread that does not end before `may_end`."""

    def __init__(self, thread: LoopThread) -> None:
        self.is_ending, self.may_end = threading.Event(), threading.Event()
        self.task = thread.run(self._begin())

    async def _begin(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return task

    async def _run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            while not self.may_end.is_set():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.2)  # a `close` that does not wait for the end returns before

    def end_with_next_close(self, thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
        call, may_end = thread._loop.call_soon_threadsafe, self.may_end.set
        monkeypatch.setattr(thread._loop, "call_soon_threadsafe", lambda *called: (call(*called), call(may_end)))


def test_closes_at_once_end_the_tasks(thread: LoopThread, monkeypatch: pytest.MonkeyPatch):
    """As after Ctrl-C in the first call."""
    slow = SlowEnd(thread)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(thread.close)
        assert slow.is_ending.wait(20)
        slow.end_with_next_close(thread, monkeypatch)
        second = pool.submit(thread.close)
        first.result()
        second.result()
    assert slow.task.cancelled()
    assert thread._loop.is_closed()
    thread.close()


def test_close_after_an_interrupted_one_waits_for_the_end(thread: LoopThread, monkeypatch: pytest.MonkeyPatch):
    slow = SlowEnd(thread)

    def interrupt() -> None:
        slow.is_ending.wait()
        threading.Event().wait(0.1)  # by then the close waits for the thread
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            thread.close()
        interrupting.result()
    slow.end_with_next_close(thread, monkeypatch)
    thread.close()
    assert slow.task.cancelled()
    assert thread._loop.is_closed()
