"""How much time has passed, at least as much as really has.

A monotonic clock may stand still while the machine sleeps, and the wall clock may be set back. Neither alone proves
that little time has passed, so the larger difference counts.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Moment(NamedTuple):
    """A moment on both clocks, in seconds."""

    wall_s: float = 0.0
    running_s: float = 0.0

    def elapsed_s(self) -> float:
        """The time since this moment. It may be too long if the wall clock was set forward."""
        present = now()
        return max(present.wall_s - self.wall_s, present.running_s - self.running_s)


def now() -> Moment:
    return Moment(time.time(), time.clock_gettime(_RUNNING))


_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that goes on while the machine sleeps."""
