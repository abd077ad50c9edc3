"""How long a connection waits while memory or log fill up, and for whose sake."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.segmentstore.tiering.storage_limits import (
    THROTTLE_DELAY_S_MAX,
    THROTTLE_FROM_FILL,
    Throttle,
    throttle_delay_s,
)


@pytest.mark.parametrize(
    ("fill", "share"), [(0.0, 0.0), (THROTTLE_FROM_FILL, 0.0), (0.875, 0.25), (1.0, 1.0), (1.5, 1.0)]
)
def test_delay_grows_with_the_square_of_what_is_above(fill: float, share: float):
    assert throttle_delay_s(fill) == share * THROTTLE_DELAY_S_MAX


class Store:
    """With these bytes of 1,000 in memory, and these fills of the log in all and of each of two containers."""

    def __init__(self, untiered_bytes: int = 0, fill: float = 0.0, **fills: float) -> None:
        self.looks: list[float] = []
        self.containers: dict[str, Any] = {
            name: SimpleNamespace(log=SimpleNamespace(ledger=each)) for name, each in fills.items()
        }
        pool: Any = SimpleNamespace(untiered_bytes=untiered_bytes, capacity_bytes=1000)
        room: Any = SimpleNamespace(
            look=self.looks.append,
            fill=fill,
            fill_of=lambda ledger: ledger,
            greatest_fill=max([fill, *fills.values()]),
        )
        self.throttle = Throttle(pool, room, lambda: list(self.containers.values()))

    def delay_s(self, *appended: str) -> float:
        return self.throttle.delay_s(5.0, lambda: [self.containers[name] for name in appended])

    def is_full(self, *appended: str) -> bool:
        return self.throttle.log_is_full(lambda: [self.containers[name] for name in appended])


@pytest.mark.parametrize(
    ("make", "fill"),
    [
        (lambda: Store(750, 0.75, a=0.75), 0.0),
        (lambda: Store(751, 0.0, a=0.0), 0.751),
        (lambda: Store(2000, 0.0, a=0.0), 1.0),
        (lambda: Store(0, 0.875, a=0.0), 0.875),
        (lambda: Store(0, 0.0, a=0.875), 0.875),
        (lambda: Store(900, 0.875, a=0.8), 0.9),
    ],
    ids=["calm", "memory", "too much memory", "log", "container", "the fullest"],
)
def test_connection_waits_for_what_is_fullest(make: Callable[[], Store], fill: float):
    store = make()
    assert store.delay_s("a") == throttle_delay_s(fill)
    assert store.looks == [5.0], "the fill is that of now"


def test_full_log_of_a_container_slows_its_own_connections():
    store = Store(0, 0.1, full=0.9, empty=0.2)
    assert store.delay_s("empty") == 0.0
    assert store.delay_s("full") == store.delay_s("empty", "full") == throttle_delay_s(0.9)
    assert store.delay_s() == throttle_delay_s(0.9), "it is not known where it appends to"


def test_log_is_full_where_appends_would_be_refused():
    store = Store(0, 0.1, full=1.0, empty=0.999)
    assert store.is_full("full")
    assert store.is_full()
    assert not store.is_full("empty")
    assert Store(0, 1.0, empty=0.0).is_full("empty")
    assert not Store(5000, 0.999, empty=0.999).is_full("empty")


@pytest.mark.parametrize(("store", "level"), [(Store(900, 0.1, a=0.2), 0.9), (Store(100, 0.3, a=0.2), 0.3)])
def test_level_is_the_greatest_fill(store: Store, level: float):
    assert store.throttle.level == level
