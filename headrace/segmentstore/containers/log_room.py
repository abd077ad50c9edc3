"""Limits how much log the containers of a store may hold, by the free space of the volume, and may have waiting.

Each container has a share of its own, which other containers cannot use up. Together they are limited by the volume
(`headrace/model/store_volume.py`). Entries that wait for other stores or for S3 are limited for all containers
together; the ones with the most of them reach the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Ledger

HELD_LOG_BYTES_MAX: Final = 4 << 30
"""The limit of one container on a volume of any size, since a recovery has to read all of it."""

REFUSED_FROM_FILL: Final = 1.25
"""Connections wait from 1 on. The rest is for commands that they had received by then, and for other operations."""

LOOKED_AT_EVERY_S: Final = 0.1


class LogRoom:
    """`fill` is the fill of the store's log, `fill_of` that of one container's share. At 1 clients wait.

    `container_bytes_max` is the share of a container, `greatest_fill` the maximum over the log and all containers.
    The fill of a container is the largest one of its held log, of the entries that wait for other stores or for S3, and
    of a copy that does not catch up.
    """

    def __init__(self, space: Callable[[], LogSpace], ledgers: Callable[[], Iterable[Ledger]]) -> None:
        self._space = space
        self._ledgers = ledgers
        self._due_s = 0.0
        self.fill = 0.0
        self.greatest_fill = 0.0
        self._waiting_fill = 0.0
        self._waiting_logs = 0
        self.is_exhausted = False
        self.container_bytes_max = HELD_LOG_BYTES_MAX
        self._refused_bytes = int(REFUSED_FROM_FILL * HELD_LOG_BYTES_MAX)

    def look(self, now_s: float) -> None:
        """Measure the volume, unless that was done less than LOOKED_AT_EVERY_S ago."""
        if now_s >= self._due_s:
            self._due_s = now_s + LOOKED_AT_EVERY_S
            self._look()

    def fill_of(self, ledger: Ledger) -> float:
        return max(ledger.held_bytes / self.container_bytes_max, self._waiting_fill_of(ledger), ledger.lag_fill)

    def refuses(self, ledger: Ledger) -> bool:
        """Whether operations of clients are refused for this container. It is called for each operation."""
        return self.is_exhausted or ledger.held_bytes > self._refused_bytes

    def refusal(self, ledger: Ledger) -> str | None:
        """Measure the volume again. Returns why operations are refused, or None if there is room by now."""
        self._look()
        if self.is_exhausted:
            return "the volume has no room for its log"
        if self.refuses(ledger):
            return f"it holds {ledger.held_bytes} bytes of log that are not in tier 2"
        return None

    def _waiting_fill_of(self, ledger: Ledger) -> float:
        """The fill of what waits for others, for a log with half of an even share of it or more; else 0.

        So replicas or S3, if they answer slowly, slow down only the containers that wait for them.
        """
        own = ledger.unacknowledged_fill
        has_share = own > 0.0 and 2 * own * self._waiting_logs >= self._waiting_fill
        return max(own, self._waiting_fill) if has_share else 0.0

    def _look(self) -> None:
        space, ledgers = self._space(), list(self._ledgers())
        self.container_bytes_max = min(HELD_LOG_BYTES_MAX, space.container_bytes_max(len(ledgers)))
        self._refused_bytes = int(REFUSED_FROM_FILL * self.container_bytes_max)
        self.fill, self.is_exhausted = space.fill, space.is_exhausted
        waiting = [fill for each in ledgers if (fill := each.unacknowledged_fill) > 0.0]
        self._waiting_fill, self._waiting_logs = sum(waiting), len(waiting)
        self.greatest_fill = max(self.fill, max(map(self.fill_of, ledgers), default=0.0))
