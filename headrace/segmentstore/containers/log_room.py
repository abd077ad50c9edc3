"""How much of the log the containers of a store may hold, as of the last look at the volume.

A container has its share of the room, whatever the others do; all of them have what the volume has left
(`headrace/model/log_space.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.model.log_space import LogSpace
from headrace.ports.ledger import Ledger

HELD_LOG_BYTES_MAX: Final = 4 << 30
"""Of one container, however large the volume is: a recovery has to read it."""

REFUSED_FROM_FILL: Final = 1.25
"""Connections wait from 1 on. Beyond is what they had received by then, and what does not come by appends."""

LOOKED_AT_EVERY_S: Final = 0.1


class LogRoom:
    """`fill` is that of the log of the store, `fill_of` that of one container's share: at 1 clients wait.

    `container_bytes_max` is a container's share, `greatest_fill` that of the log or of the fullest container.
    """

    def __init__(self, space: Callable[[], LogSpace], ledgers: Callable[[], Iterable[Ledger]]) -> None:
        self._space = space
        self._ledgers = ledgers
        self._due_s = 0.0
        self.fill = 0.0
        self.greatest_fill = 0.0
        self.is_exhausted = False
        self.container_bytes_max = HELD_LOG_BYTES_MAX
        self._refused_bytes = int(REFUSED_FROM_FILL * HELD_LOG_BYTES_MAX)

    def look(self, now_s: float) -> None:
        """Look at the volume if the last time is long ago."""
        if now_s >= self._due_s:
            self._due_s = now_s + LOOKED_AT_EVERY_S
            self._look()

    def fill_of(self, ledger: Ledger) -> float:
        return ledger.held_bytes / self.container_bytes_max

    def refuses(self, ledger: Ledger) -> bool:
        """Whether nothing more is logged for clients of this container; this is asked for each operation."""
        return self.is_exhausted or ledger.held_bytes > self._refused_bytes

    def refusal(self, ledger: Ledger) -> str | None:
        """Why nothing more is logged for them, by a new look: nothing is refused on old news."""
        self._look()
        if self.is_exhausted:
            return "the volume has no room for its log"
        if self.refuses(ledger):
            return f"it keeps {ledger.held_bytes} bytes of log that tier 2 has not taken"
        return None

    def _look(self) -> None:
        space, ledgers = self._space(), list(self._ledgers())
        self.container_bytes_max = min(HELD_LOG_BYTES_MAX, space.container_bytes_max(len(ledgers)))
        self._refused_bytes = int(REFUSED_FROM_FILL * self.container_bytes_max)
        self.fill, self.is_exhausted = space.fill, space.is_exhausted
        self.greatest_fill = max(self.fill, max(map(self.fill_of, ledgers), default=0.0))
