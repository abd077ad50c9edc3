"""Schedules: no catch-up storm, and a way to fire now."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.system_clock import SystemClock
from headrace.local.lambda_host import HandlerFailedError
from headrace.local.schedules import ScheduleTimer, next_due_s
from headrace.topology import SCHEDULES, Schedule


@given(last=st.floats(0, 1e6), late=st.floats(0, 1e6), period=st.sampled_from([60.0, 300.0, 3600.0]))
def test_the_next_run_is_on_the_timetable_and_in_the_future(last: float, late: float, period: float):
    now = last + late
    due = next_due_s(last, now, period)
    assert now < due or due == pytest.approx(now)
    assert due - now <= period + 1e-6
    assert ((due - last) / period) == pytest.approx(round((due - last) / period))


def test_a_laptop_that_slept_gets_one_run():
    assert next_due_s(0.0, 3 * 3600.0 + 10, 60.0) == 3 * 3600.0 + 60


def test_fire_now_calls_the_function_with_the_declared_event():
    calls: list[tuple[str, Any]] = []

    def invoke(name: str, event: Any) -> str:
        calls.append((name, event))
        return "done"

    timer = ScheduleTimer(Schedule("s", "f", 5, {"a": "b"}), invoke, SystemClock())
    assert timer.fire_now() == "done"
    assert calls == [("f", {"a": "b"})]


def test_it_fires_when_started_survives_a_failure_and_stops():
    fired = threading.Event()

    def invoke(_name: str, _event: Any) -> None:
        fired.set()
        raise HandlerFailedError("boom")

    timer = ScheduleTimer(SCHEDULES[0], invoke, SystemClock())
    timer.start()
    assert fired.wait(30)
    timer.ask_to_stop()
    assert timer.join(30)
