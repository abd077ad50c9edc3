"""Schedules on the monotonic clock of the machine. After a laptop has slept, one run replaces all missed ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace.local.lambda_host import HandlerFailedError
from headrace.ports.clock import Clock
from headrace.topology import Schedule

Invoke = Callable[[str, Mapping[str, Any]], Any]

SECONDS_PER_MINUTE = 60

_log = logging.getLogger(__name__)


class ScheduleTimer:
    """Runs one schedule, first at the start, then once per period."""

    def __init__(self, schedule: Schedule, invoke: Invoke, clock: Clock) -> None:
        self.schedule = schedule
        self._invoke = invoke
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"schedule-{schedule.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Start no more runs; return at once."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for a current run. Return whether it ended in time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def fire_now(self) -> Any:
        """Run once in the caller's thread, in addition to the timetable; return the result of the function.

        Raises:
            HandlerFailedError: the function failed.
        """
        return self._invoke(self.schedule.function, dict(self.schedule.event))

    def _run(self) -> None:
        period_s = self.schedule.every_minutes * SECONDS_PER_MINUTE
        due_s = self._clock.monotonic_s()
        while not self._stopping.is_set():
            try:
                self.fire_now()
            except HandlerFailedError:
                _log.exception("schedule %s failed", self.schedule.name)
            due_s = next_due_s(due_s, self._clock.monotonic_s(), period_s)
            self._stopping.wait(due_s - self._clock.monotonic_s())


def next_due_s(last_due_s: float, now_s: float, period_s: float) -> float:
    """The first time of the timetable after `now_s`; missed runs are skipped."""
    missed = max(0, int((now_s - last_due_s) // period_s))
    return last_due_s + (missed + 1) * period_s
