"""A store that does not answer is left alone by those who can, and tried again by one of them from time to time."""

from __future__ import annotations

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.tcp.store_calls import PROBE_EVERY_S, StoreAddress, StoreCalls, UnreachableContainers
from headrace.model.errors import OutOfTimeError
from headrace.ports.clock import time_limit

PROBE_EVERY_MS = int(PROBE_EVERY_S * 1000)


def test_one_caller_at_a_time_tries_a_container_that_is_away():
    clock = ManualClock()
    away = UnreachableContainers(clock.monotonic_s)
    assert not away.is_unreachable(1)
    away.note_failure([1, 2])
    assert [away.is_unreachable(container) for container in (1, 2, 3)] == [True, True, False]
    clock.advance(PROBE_EVERY_MS)
    assert [away.is_unreachable(1), away.is_unreachable(1)] == [False, True]
    away.note_failure([1])
    clock.advance(PROBE_EVERY_MS - 1)
    assert away.is_unreachable(1)
    clock.advance(1)
    assert not away.is_unreachable(1)
    away.note_answer([1])
    assert [away.is_unreachable(1), away.is_unreachable(1)] == [False, False]


def test_a_caller_without_time_says_nothing_about_the_store():
    clock = ManualClock()

    def locate(container: int) -> StoreAddress:
        raise AssertionError(f"container {container} was looked for")

    calls = StoreCalls(locate, 1, deadline_s=10, monotonic_s=clock.monotonic_s)
    with time_limit(clock, 0):
        with pytest.raises(OutOfTimeError):
            calls.call([("s/t/0.#epoch.0", None)])  # type: ignore[list-item]
        with pytest.raises(OutOfTimeError):
            calls.converse("s/t/0.#epoch.0", lambda ask: None)
    assert not calls.is_unreachable("s/t/0.#epoch.0")
