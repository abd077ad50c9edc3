"""The times of links between replicas, and the timer that both ends measure silence with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Each end sends a pulse every `pulse_s`. A link on which nothing was received for `silence_s` is down.

    After `stalled_s` in which an owner took none of its answers the link is closed, too. A process waits no longer for
    a replica without a link to which it sent no OPEN for `forgotten_s`. After a dial that failed the next one waits
    `redial_first_s`, and twice as long after each further failure, up to `redial_max_s`.
    """

    dial_s: float = 1.0
    handshake_s: float = 1.0
    pulse_s: float = 0.5
    silence_s: float = 1.5
    stalled_s: float = 10.0
    forgotten_s: float = 5.0
    redial_first_s: float = 0.05
    redial_max_s: float = 0.5


class PulseTimer:
    """Calls `tick(now_s, late_s)` every `pulse_s` between `start` and `stop`.

    `late_s` is for how long this process did not run its loop. Links must not take that for silence of the other end.
    """

    def __init__(self, pulse_s: float, tick: Callable[[float, float], None]) -> None:
        self._pulse_s = pulse_s
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def late_s(self, now_s: float) -> float:
        """For how long a tick is due, because this process did not run its loop."""
        return 0.0 if self._timer is None else max(0.0, now_s - self._due_s)

    def start(self) -> None:
        """Does nothing if it runs already."""
        if self._timer is None:
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + self._pulse_s
        self._timer = loop.call_at(self._due_s, self._run)

    def _run(self) -> None:
        now_s = asyncio.get_running_loop().time()
        late_s = self.late_s(now_s)
        self._schedule()
        self._tick(now_s, late_s)
