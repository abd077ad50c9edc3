"""Counts of failed attempts to authenticate, which slow down guessing."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

FAILURES_MAX: Final = 10
"""Of one user at one address. Failures elsewhere do not count: else anyone could keep a user from logging in."""

ADDRESS_FAILURES_MAX: Final = 50
"""Of all users at one address, which several clients may share."""

WINDOW_S: Final = 60.0
BLOCK_S: Final = 60.0
KEYS_MAX: Final = 10_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """A map that drops what was not used for longest when it is full."""

    def __init__(self, entries_max: int = KEYS_MAX) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._entries_max = entries_max

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)


@dataclass(slots=True)
class _Failures:
    times_s: deque[float]
    blocked_until_s: float = float("-inf")


class FailedAttempts(Generic[K]):
    """`failures_max` failures of a key (an address, or a user at an address) within WINDOW_S block it for BLOCK_S.

    Times are in seconds of a monotonic clock.
    """

    def __init__(self, failures_max: int = FAILURES_MAX, keys_max: int = KEYS_MAX) -> None:
        self._failures_max = failures_max
        self._failures: BoundedMap[K, _Failures] = BoundedMap(keys_max)

    def is_blocked(self, key: K, now_s: float) -> bool:
        found = self._failures.get(key)
        return found is not None and now_s < found.blocked_until_s

    def add(self, key: K, now_s: float) -> bool:
        """Count a failure. Returns whether it blocks the key."""
        found = self._failures.get(key)
        if found is None:
            found = _Failures(deque(maxlen=self._failures_max))
            self._failures.put(key, found)
        found.times_s.append(now_s)
        blocks = len(found.times_s) == self._failures_max and now_s - found.times_s[0] <= WINDOW_S
        if blocks:
            found.blocked_until_s = now_s + BLOCK_S
            found.times_s.clear()
        return blocks
