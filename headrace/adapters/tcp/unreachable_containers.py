"""Which containers have no store that answers: a circuit breaker for callers that have other things to do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

PROBE_EVERY_S = 10.0


class UnreachableContainers:
    """Learns from what becomes of requests; safe for any number of threads."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._failed_s: dict[int, float] = {}

    def note_failure(self, containers: Iterable[int]) -> None:
        """Record that all attempts of requests to these containers failed."""
        with self._lock:
            for container in containers:
                self._failed_s.setdefault(container, self._monotonic_s())

    def note_answer(self, containers: Iterable[int]) -> None:
        with self._lock:
            for container in containers:
                self._failed_s.pop(container, None)

    def is_unreachable(self, container: int) -> bool:
        """Whether requests to the container are held back for now. One caller in each PROBE_EVERY_S may try it."""
        with self._lock:
            failed_s = self._failed_s.get(container)
            if failed_s is None:
                return False
            now_s = self._monotonic_s()
            if now_s < failed_s + PROBE_EVERY_S:
                return now_s >= failed_s
            self._failed_s[container] = now_s
            return False
