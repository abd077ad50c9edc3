"""A cache with a bound on the total weight of its values. It evicts the least recently used value first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Safe for any number of threads. `weigh` returns the weight of a value in the unit of `weight_max`."""

    def __init__(self, weight_max: int, weigh: Callable[[V], int]) -> None:
        self._weight_max = weight_max
        self._weigh = weigh
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()
        self._weight = 0

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: K) -> V | None:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._weight_max:
                self._drop(next(iter(self._values)))

    def forget(self, key: K) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: K) -> None:
        dropped = self._values.pop(key, None)
        if dropped is not None:
            self._weight -= self._weigh(dropped)
