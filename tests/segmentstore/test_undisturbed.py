"""Work that a cancelled caller does not interrupt, and whose error asyncio does not report then."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headrace.segmentstore.containers.settlements import undisturbed

pytestmark = pytest.mark.anyio


async def test_work_goes_on_without_its_caller():
    gate, done = asyncio.Event(), []

    async def work() -> None:
        await gate.wait()
        done.append(None)

    running = asyncio.ensure_future(work())
    caller = asyncio.ensure_future(undisturbed(running))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    gate.set()
    await asyncio.wait([running])
    assert done


async def test_an_error_without_a_caller_is_not_reported():
    gate, reports = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

    async def work() -> None:
        await gate.wait()
        raise ValueError("too late")

    caller = asyncio.ensure_future(undisturbed(asyncio.ensure_future(work())))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    del caller  # its traceback keeps the task of the work, which asyncio judges when it goes
    gate.set()
    await asyncio.sleep(0.01)
    gc.collect()
    assert reports == []


async def test_a_caller_that_waits_gets_the_result_or_the_error():
    async def work(error: Exception | None) -> str:
        if error is not None:
            raise error
        return "done"

    assert await undisturbed(asyncio.ensure_future(work(None))) == "done"
    with pytest.raises(ValueError, match="wrong"):
        await undisturbed(asyncio.ensure_future(work(ValueError("wrong"))))
