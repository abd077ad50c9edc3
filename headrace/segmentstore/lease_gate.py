"""Holds acknowledgements back while this store's lease may have ended, so that two owners never both acknowledge.

What is held back is in the log, and is told when the lease was renewed: then nobody else can have taken over. A store
without a lease (one store, one process, a test) never holds anything back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.ports.clock import Clock


class LeaseGate:
    """One per store process, on the event loop. Open from the beginning, until it is first told of a lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: float | None = None
        self._held: deque[Callable[[], None]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether the lease surely stands, on the monotonic clock."""
        return self._until_s is None or self._clock.monotonic_s() < self._until_s

    @property
    def held(self) -> int:
        """Reports that wait."""
        return len(self._held)

    def hold(self, report: Callable[[], None]) -> None:
        """Keep a report until the lease stands again; reports keep their order."""
        self._held.append(report)

    def extend(self, until_s: float) -> None:
        """The lease stands until then (monotonic): what was held back goes out, in its order."""
        self._until_s = until_s
        while self._held and self.is_open:
            self._held.popleft()()

    def close(self) -> None:
        """The lease is gone, whatever its time says."""
        self._until_s = float("-inf")
