"""A KeyboardInterrupt anywhere in a wait of the synchronous client keeps no lock that the client's thread needs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import _base as futures
from functools import partial
from itertools import count

import pytest
from keyboard_interrupts import is_interrupted

from headrace.client import loop_thread
from headrace.client.loop_thread import LoopThread
from headrace.client.writing import awaited_changes, batch_accumulator, event_blocks
from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.batch_accumulator import BatchAccumulator
from headrace.client.writing.event_blocks import SegmentQueue, Wants
from headrace.client.writing.routing_table import Route
from headrace.model.segments import equal_ranges

STUCK_S = 20.0


def goes_on(thread: LoopThread) -> bool:
    """Whether the loop still runs what is handed to it."""
    ran = threading.Event()
    thread._loop.call_soon_threadsafe(ran.set)
    return ran.wait(STUCK_S)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("check_s", [0.002, 1.0])
def test_interrupted_call_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch, check_s: float) -> None:
    thread = LoopThread()
    monkeypatch.setattr(loop_thread, "LOOP_CHECK_S", check_s)
    ended: list[int] = []

    async def wait(number: int) -> str:
        try:
            await asyncio.sleep(0.01)
            return "done"
        finally:
            ended.append(number)

    for at in count():
        was_interrupted = is_interrupted(lambda at=at: thread.run(wait(at)), at, loop_thread, futures, threading)
        assert goes_on(thread), f"at place {at}"
        if not was_interrupted:
            break
    assert at > 2
    assert thread.run(wait(-1)) == "done"
    assert ended[-2:] == [at, -1]
    thread.close()


def _result(_: BatchAccumulator, ack: Ack) -> None:
    ack.result()


def _add_callback(_: BatchAccumulator, ack: Ack) -> None:
    ack.add_done_callback(lambda _: None)


def _wait_for_room(accumulator: BatchAccumulator, _: Ack) -> None:
    assert accumulator.wait_for_room()


def _flush(accumulator: BatchAccumulator, _: Ack) -> None:
    assert accumulator.wait_until_empty(STUCK_S)


@pytest.mark.parametrize("wait", [_result, _add_callback, _wait_for_room, _flush])
def test_interrupted_wait_does_not_stop_the_writer(wait: Callable[[BatchAccumulator, Ack], None]) -> None:
    for at in count():
        accumulator = BatchAccumulator(block_bytes=1, buffer_bytes=1)
        queue = accumulator.new_queue(0, lambda: None)
        accumulator.route([Route(equal_ranges(1)[0], queue)])
        ack = accumulator.add(b"event", "key")
        assert ack is not None

        async def acknowledge(accumulator: BatchAccumulator = accumulator, queue: SegmentQueue = queue) -> None:
            block = accumulator.take(queue, allow_partial=True, wake_on=Wants.ANY_EVENT)
            assert block is not None
            accumulator.complete([block])

        appender = threading.Timer(0.005, lambda run=acknowledge: asyncio.run(run()))
        appender.daemon = True
        appender.start()
        modules = (awaited_changes, batch_accumulator, event_blocks, threading)
        was_interrupted = is_interrupted(partial(wait, accumulator, ack), at, *modules)
        appender.join(STUCK_S)
        assert not appender.is_alive(), f"at place {at}"
        assert ack.done
        if not was_interrupted:
            break
    assert at > 0
