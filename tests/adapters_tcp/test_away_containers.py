"""A store that does not answer is left alone by those who can, and tried again by one of them from time to time."""

from __future__ import annotations

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.tcp.away_containers import PROBE_EVERY_S, AwayContainers

PROBE_EVERY_MS = int(PROBE_EVERY_S * 1000)


def test_one_caller_at_a_time_tries_a_container_that_is_away():
    clock = ManualClock()
    away = AwayContainers(clock.monotonic_s)
    assert not away.is_away(1)
    away.note_failure([1, 2])
    assert [away.is_away(container) for container in (1, 2, 3)] == [True, True, False]
    clock.advance(PROBE_EVERY_MS)
    assert [away.is_away(1), away.is_away(1)] == [False, True]
    away.note_failure([1])
    clock.advance(PROBE_EVERY_MS - 1)
    assert away.is_away(1)
    clock.advance(1)
    assert not away.is_away(1)
    away.note_answer([1])
    assert [away.is_away(1), away.is_away(1)] == [False, False]
