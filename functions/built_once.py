"""Objects that a process builds at their first use and keeps until it ends, or until they are forgotten."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_lock = threading.RLock()
_forget: list[Callable[[], None]] = []


def once(build: Callable[[], T]) -> Callable[[], T]:
    """Build at most one object, even if several threads of the local stack call at the same time."""
    cached = functools.cache(build)
    _forget.append(cached.cache_clear)

    @functools.wraps(build)
    def built() -> T:
        with _lock:
            return cached()

    return built


def forget_all() -> None:
    """Make the next call build each object again."""
    with _lock:
        for clear in _forget:
            clear()
