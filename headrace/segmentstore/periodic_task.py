"""Background work that is repeated: at intervals, when it is woken, and with a back-off after a failure."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from headrace.model.backoff import doubled_pause

_log = logging.getLogger(__name__)


class Rest(NamedTuple):
    """The rest of a task after a pass: for `least_s` in any case, then until it is woken or `most_s` are over."""

    least_s: float
    most_s: float

    @classmethod
    def fixed(cls, seconds: float) -> Rest:
        """A rest that a wake-up does not shorten."""
        return cls(seconds, seconds)


NO_REST: Final = Rest.fixed(0.0)
"""There may be more to do now. Other tasks get one turn of the event loop."""

UNTIL_WOKEN: Final = Rest(0.0, math.inf)


class Timer(Protocol):
    """What `CallLater` returns, as `asyncio.TimerHandle`."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after some seconds, as `loop.call_later`, which is used unless a test passes another one."""

OnFailure = Callable[[Exception, float], bool]
"""Reports a failed pass, and the pause in seconds before it is repeated. Returns False to end the task instead."""


class PeriodicTask:
    """Repeats `run_pass`, which returns the rest before the next pass, or None to end the task.

    A pass that raises is reported to `on_failure` and repeated after a pause from `retry_first_s`, which doubles with
    each consecutive failure up to `retry_max_s`. `woken` is the event that wakes the task. A wake-up during a pass
    shortens the rest after it.
    """

    def __init__(
        self,
        run_pass: Callable[[], Awaitable[Rest | None]],
        on_failure: OnFailure | None = None,
        *,
        retry_first_s: float,
        retry_max_s: float | None = None,
        woken: asyncio.Event | None = None,
        call_later: CallLater | None = None,
    ) -> None:
        self._run_pass = run_pass
        self._on_failure = on_failure or self._report
        self._retry_first_s = retry_first_s
        self._retry_max_s = retry_first_s if retry_max_s is None else retry_max_s
        self._woken = woken or asyncio.Event()
        self._call_later = call_later
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def is_retrying(self) -> bool:
        """Whether the last pass has failed."""
        return self._failures > 0

    def wake(self) -> None:
        """Let the next pass begin as soon as the rest allows it."""
        self._woken.set()

    def start(self, rest: Rest | None = None) -> None:
        """Run in a task of its own until `stop`. The first pass begins at once, or after `rest`."""
        self._task = asyncio.ensure_future(self.run(rest))

    async def run(self, rest: Rest | None = None) -> None:
        """Run in the task of the caller until a pass or `on_failure` ends it."""
        while True:
            if rest is not None:
                await self._rest(rest)
            try:
                rest = await self._run_pass()
                self._failures = 0
            except Exception as error:  # noqa: BLE001 - `on_failure` decides about every error
                self._failures += 1
                retry_s = doubled_pause(self._failures, self._retry_first_s, self._retry_max_s)
                rest = Rest.fixed(retry_s) if self._on_failure(error, retry_s) else None
            if rest is None:
                return

    def cancel(self) -> None:
        """End the task without waiting for it."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self, patience_s: float = 0.0) -> None:
        """Wait `patience_s` for the task to end by itself, then cancel it. Returns when it has ended."""
        task, self._task = self._task, None
        if task is None:
            return
        if patience_s:
            await asyncio.wait([task], timeout=patience_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _rest(self, rest: Rest) -> None:
        if not rest.most_s:
            await asyncio.sleep(0)
            return
        if rest.least_s:
            await self._until(asyncio.Event(), rest.least_s)
        if rest.most_s > rest.least_s:
            await self._until(self._woken, rest.most_s - rest.least_s)
        self._woken.clear()

    async def _until(self, event: asyncio.Event, most_s: float) -> None:
        # Not asyncio.wait_for: before Python 3.12 it may swallow a cancellation that meets a wake-up.
        timer: Timer | None = None
        if most_s != math.inf:
            call_later = self._call_later or asyncio.get_running_loop().call_later
            timer = call_later(most_s, event.set)
        try:
            await event.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _report(self, error: Exception, retry_s: float) -> bool:
        name = getattr(self._run_pass, "__qualname__", repr(self._run_pass))
        _log.error("event=periodic_task_failed task=%s retry_s=%.1f", name, retry_s, exc_info=error)
        return True
