"""The end of the thread on which the synchronous API runs: nothing is left of its loop."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from headrace.client.loop_thread import LoopThread


@pytest.fixture
def thread() -> LoopThread:
    return LoopThread(asyncio.new_event_loop())


def warned(thread: LoopThread) -> list[str]:
    """What Python complains about while the thread ends."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        thread.close()
        gc.collect()
    return [str(each.message) for each in found]


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
