"""Slows connections down before memory or log are full, so that appends go on at the rate of tier 2, not in jerks.

The fuller it gets, the longer a connection that appends is left alone after each piece that was received from it. It
settles where as much comes in as tier 2 takes, and ends by itself. Reads, and whoever only reads, are never slowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.segmentstore.containers.container import HELD_LOG_BYTES_MAX, SegmentContainer
from headrace.segmentstore.reading.block_pool import BlockPool

THROTTLE_FROM_FILL: Final = 0.75
"""Storage writers hurry from half of the cache on: below this they still have a chance to catch up."""

THROTTLE_DELAY_S_MAX: Final = 1.0
LOG_LOOKED_AT_EVERY_S: Final = 0.1


def throttle_delay_s(fill: float) -> float:
    """How long to receive nothing, when unstored bytes or held log are at this share of their limit.

    It grows from nothing with the square of what is above `THROTTLE_FROM_FILL`, to `THROTTLE_DELAY_S_MAX` at the limit.
    """
    above = (min(fill, 1.0) - THROTTLE_FROM_FILL) / (1.0 - THROTTLE_FROM_FILL)
    return THROTTLE_DELAY_S_MAX * above * above if above > 0 else 0.0


class Throttle:
    """Of all connections of a store."""

    def __init__(self, pool: BlockPool, containers: Callable[[], Iterable[SegmentContainer]]) -> None:
        self._pool = pool
        self._containers = containers
        self._calm_bytes = int(THROTTLE_FROM_FILL * pool.capacity_bytes)
        self._log_fill = 0.0
        self._log_due_s = 0.0

    def delay_s(self, now_s: float) -> float:
        """How long to receive nothing after appends; 0 as long as tier 2 keeps up."""
        if now_s >= self._log_due_s:
            self._log_due_s = now_s + LOG_LOOKED_AT_EVERY_S
            held_bytes = max((each.log.ledger.held_bytes for each in self._containers()), default=0)
            self._log_fill = held_bytes / HELD_LOG_BYTES_MAX
        if self._pool.unstored_bytes <= self._calm_bytes and self._log_fill <= THROTTLE_FROM_FILL:
            return 0.0
        return throttle_delay_s(max(self._pool.unstored_bytes / self._pool.capacity_bytes, self._log_fill))

    @property
    def log_is_full(self) -> bool:
        """Whether appends would be refused: wait on."""
        return self._log_fill >= 1.0
