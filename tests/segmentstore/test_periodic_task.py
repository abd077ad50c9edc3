"""A periodic task rests, is woken, backs off after failures, and stops, by a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from manual_timers import ManualTimers

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.segmentstore.periodic_task import NO_REST, UNTIL_WOKEN, PeriodicTask, Rest

pytestmark = pytest.mark.anyio

Run = Callable[[Coroutine[Any, Any, None]], None]


class Work:
    """Passes whose outcomes a test lists: a rest, an error, or None for the end. The last one is repeated."""

    def __init__(self, *outcomes: Rest | Exception | None, goes_on: bool = True, woken: asyncio.Event | None = None):
        self.timers = ManualTimers(ManualClock())
        self.outcomes = list(outcomes)
        self.goes_on = goes_on
        self.passes = 0
        self.reported: list[tuple[Exception, float]] = []
        self.held: asyncio.Future[None] | None = None
        self.task = PeriodicTask(
            self.run_pass,
            self.failed,
            retry_first_s=1.0,
            retry_max_s=5.0,
            woken=woken,
            call_later=self.timers.call_later,
        )

    async def run_pass(self) -> Rest | None:
        self.passes += 1
        if self.held is not None:
            await self.held
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def failed(self, error: Exception, retry_s: float) -> bool:
        self.reported.append((error, retry_s))
        return self.goes_on


async def test_passes_follow_at_the_interval():

    work = Work(Rest.fixed(10.0))
    work.task.start()
    await work.timers.advance(9.9)
    assert work.passes == 1
    await work.timers.advance(0.1)
    assert work.passes == 2
    await work.task.stop()


async def test_the_first_pass_waits_for_the_rest_before_it():

    work = Work(Rest.fixed(10.0))
    work.task.start(Rest.fixed(3.0))
    await work.timers.advance(2.9)
    assert work.passes == 0
    await work.timers.advance(0.1)
    assert work.passes == 1
    await work.task.stop()


async def test_more_work_follows_at_once_and_lets_others_run():

    work = Work(NO_REST, NO_REST, Rest.fixed(10.0))
    work.task.start()
    await asyncio.sleep(0)
    assert work.passes == 1, "another task gets a turn between two passes"
    await work.timers.turn()
    assert work.passes == 3
    await work.task.stop()


@pytest.mark.parametrize("rest", [Rest(0.0, 10.0), UNTIL_WOKEN], ids=["interval", "until woken"])
async def test_a_wake_up_ends_the_rest_once(rest: Rest):

    work = Work(rest)
    work.task.start()
    await work.timers.turn()
    work.task.wake()
    work.task.wake()
    await work.timers.turn()
    assert work.passes == 2
    assert work.timers.pending == [each for each in [rest.most_s] if each < 1e9], "one timer, for the new rest"
    await work.task.stop()
    assert work.timers.pending == []


async def test_a_wake_up_does_not_shorten_the_least_rest():

    work = Work(Rest(2.0, 10.0))
    work.task.start()
    await work.timers.turn()
    work.task.wake()
    await work.timers.advance(1.9)
    assert work.passes == 1
    await work.timers.advance(0.1)
    assert work.passes == 2
    await work.timers.advance(9.9)
    assert work.passes == 2, "the wake-up counts once"
    await work.task.stop()


async def test_a_wake_up_during_a_pass_is_kept():

    work = Work(UNTIL_WOKEN)
    work.held = asyncio.get_running_loop().create_future()
    work.task.start()
    await work.timers.turn()
    work.task.wake()
    work.held.set_result(None)
    work.held = None
    await work.timers.turn()
    assert work.passes == 2
    await work.task.stop()


async def test_an_event_from_outside_wakes_the_task():

    woken = asyncio.Event()
    work = Work(UNTIL_WOKEN, woken=woken)
    work.task.start()
    await work.timers.turn()
    woken.set()
    await work.timers.turn()
    assert work.passes == 2
    assert not woken.is_set()
    await work.task.stop()


async def test_failures_back_off_and_a_success_resets_them():

    errors = [ValueError(str(number)) for number in range(5)]
    work = Work(*errors, Rest.fixed(1.0), errors[0], NO_REST)
    work.task.start()
    for pause_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        await work.timers.turn()
        assert work.task.is_retrying
        work.task.wake()  # a wake-up does not shorten the pause
        before = work.passes
        await work.timers.advance(pause_s - 0.1)
        assert work.passes == before
        await work.timers.advance(0.1)
        assert work.passes == before + 1
    assert not work.task.is_retrying
    await work.timers.advance(1.0)
    assert [pause for _, pause in work.reported] == [1.0, 2.0, 4.0, 5.0, 5.0, 1.0]
    assert [error for error, _ in work.reported[:5]] == errors
    await work.task.stop()


@pytest.mark.parametrize("outcome", [None, ValueError("final")], ids=["a pass", "the error handler"])
async def test_a_task_can_end_itself(outcome: Exception | None):

    work = Work(outcome, goes_on=False)
    work.task.start()
    await work.timers.advance(100.0)
    assert (work.passes, work.task.is_running) == (1, False)
    await work.task.stop()
    work = Work(NO_REST, outcome, goes_on=False)
    await work.task.run()
    assert work.passes == 2, "also in the task of a caller"


async def test_stop_cancels_a_rest_and_a_pass():

    work = Work(Rest.fixed(10.0))
    work.task.start()
    await work.timers.turn()
    await work.task.stop()
    await work.timers.advance(100.0)
    assert (work.passes, work.reported, work.task.is_running) == (1, [], False)
    work.held = asyncio.get_running_loop().create_future()
    work.task.start()
    await work.timers.turn()
    await work.task.stop()
    assert (work.passes, work.reported, work.held.cancelled()) == (2, [], True)
    await work.task.stop()


async def test_stop_can_wait_for_the_end_of_a_pass():

    work = Work(None)
    work.held = asyncio.get_running_loop().create_future()
    work.task.start()
    await work.timers.turn()
    stopping = asyncio.ensure_future(work.task.stop(patience_s=60.0))
    await work.timers.turn()
    assert not stopping.done()
    work.held.set_result(None)
    await stopping
    assert not work.held.cancelled()


async def test_a_failure_without_a_handler_is_logged(caplog: pytest.LogCaptureFixture):

    work = Work(ValueError("a defect"), Rest.fixed(1.0))
    task = PeriodicTask(work.run_pass, retry_first_s=2.0, call_later=work.timers.call_later)
    task.start()
    await work.timers.advance(2.0)
    assert work.passes == 2
    await task.stop()
    assert "event=periodic_task_failed task=Work.run_pass retry_s=2.0" in caplog.text
    assert "a defect" in caplog.text
