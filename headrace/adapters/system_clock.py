"""The clock of the machine."""

from __future__ import annotations

import time
from datetime import datetime


class SystemClock:
    """`ports.clock.Clock` over the operating system's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


def local_now() -> datetime:
    """Now, in the time zone of this machine."""
    from headrace.codec.places import LocalZone  # not for the clock, which every function imports

    return datetime.now(LocalZone())
