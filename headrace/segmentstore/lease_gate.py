"""Holds acknowledgements back while this store's lease may have ended, so that two owners never both acknowledge.

The operations are in the log meanwhile. When the lease was renewed, no other store can have taken over, and the gate
releases the acknowledgements. A store without a lease, as in tests, never holds anything back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.ports.clock import Clock


class LeaseGate:
    """One per store process, on the event loop. It is open until the first lease is set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: float | None = None
        self._held: deque[Callable[[], None]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether the lease is certainly valid, by the monotonic clock."""
        return self._until_s is None or self._clock.monotonic_s() < self._until_s

    @property
    def held(self) -> int:
        """The number of reports that wait for the lease."""
        return len(self._held)

    def hold(self, report: Callable[[], None]) -> None:
        """Keep a report until the lease is valid again; reports keep their order."""
        self._held.append(report)

    def extend(self, until_s: float) -> None:
        """Set the monotonic time until which the lease is valid, and release the held reports in their order."""
        self._until_s = until_s
        while self._held and self.is_open:
            self._held.popleft()()

    def close(self) -> None:
        """Hold everything back from now on: the lease has ended before its time."""
        self._until_s = float("-inf")
