"""A steady pace."""

from __future__ import annotations

import time
from collections.abc import Iterator


def paced_ns(rate_per_s: int, count: int) -> Iterator[int]:
    """Yields `count` moments of the monotonic clock, each when it has come, or later if the caller was busy."""
    started_ns = time.monotonic_ns()
    for number in range(count):
        due_ns = started_ns + number * 1_000_000_000 // rate_per_s
        wait_ns = due_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        yield due_ns
