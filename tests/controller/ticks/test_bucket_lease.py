"""Leases on buckets: an overlapping tick does nothing, and a crash delays a bucket but never stops it."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace.controller.ticks.due_work import LEASE_MS, Done, Turn, under_lease
from headrace.model.errors import UnavailableError


def _tick(world: StreamWorld, work: Any, kind: str = "some", bucket: int = 0) -> bool:
    return under_lease(world.store, world.clock, kind, bucket, lambda _turn: Done(work()))


def _never() -> bool:
    raise AssertionError("worked on a bucket that somebody else has")


@pytest.mark.parametrize("more", [True, False])
def test_it_says_what_the_work_says(world: StreamWorld, more: bool):
    assert _tick(world, lambda: more) is more
    assert _tick(world, lambda: more) is more


def test_a_tick_that_overlaps_does_nothing(world: StreamWorld):
    def work() -> bool:
        world.clock.advance(LEASE_MS - 1)
        assert _tick(world, _never) is False
        return True

    assert _tick(world, work) is True


def test_kinds_and_buckets_do_not_wait_for_each_other(world: StreamWorld):
    def work() -> bool:
        return _tick(world, lambda: True, kind="other") and _tick(world, lambda: True, bucket=1)

    assert _tick(world, work) is True


def test_of_two_that_start_at_once_one_works(world: StreamWorld):
    worked: list[str] = []

    def work() -> bool:
        worked.append("other")
        return True

    def other_first() -> None:
        assert _tick(world, work) is True

    with world.calls.overtaken("write", other_first):
        assert _tick(world, _never) is False
    assert worked == ["other"]


def test_who_stalls_past_the_lease_leaves_the_next_one_alone(world: StreamWorld):
    def stalled() -> bool:
        world.clock.advance(LEASE_MS)
        assert _tick(world, lambda: True) is True
        return True

    assert _tick(world, stalled) is True
    assert _tick(world, lambda: True) is True


def test_a_former_owner_does_not_release_a_lease_taken_over(world: StreamWorld):
    def die() -> bool:
        raise Crash

    def overtaken() -> bool:
        world.clock.advance(LEASE_MS)
        with pytest.raises(Crash):
            _tick(world, die)
        return True

    assert _tick(world, overtaken) is True
    assert _tick(world, _never) is False
    world.clock.advance(LEASE_MS)
    assert _tick(world, lambda: True) is True


def test_an_expected_error_gives_the_lease_back(world: StreamWorld):
    def away() -> bool:
        raise UnavailableError("a store restarts")

    with pytest.raises(UnavailableError):
        _tick(world, away)
    assert _tick(world, lambda: True) is True


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("position", range(3))
def test_a_crash_delays_by_a_lease_at_most(world: StreamWorld, position: int, done: bool):
    _tick(world, lambda: True)
    assert world.calls.dies(lambda: _tick(world, lambda: True), position, done=done)
    world.clock.advance(LEASE_MS)
    assert _tick(world, lambda: True) is True


def test_what_it_costs(world: StreamWorld):
    world.calls.counts.clear()
    _tick(world, lambda: True)
    assert dict(world.calls.counts) == {"read": 1, "write": 2}
    world.calls.counts.clear()
    _tick(world, lambda: bool(_tick(world, _never)) or True)
    assert dict(world.calls.counts) == {"read": 2, "write": 2}


def test_the_next_tick_goes_on_where_the_last_one_stopped(world: StreamWorld):
    turns: list[Turn] = []

    def work(turn: Turn, position: str) -> Done:
        turns.append(turn)
        return Done(True, position)

    def die(turn: Turn) -> Done:
        turns.append(turn)
        raise Crash

    def tick(work: Any) -> bool:
        return under_lease(world.store, world.clock, "some", 0, work)

    assert tick(lambda turn: work(turn, "b"))
    for _ in range(2):
        with pytest.raises(Crash):
            tick(die)
        world.clock.advance(LEASE_MS)
    assert tick(lambda turn: work(turn, ""))
    assert tick(lambda turn: work(turn, "a"))
    assert turns == [Turn("", 0), Turn("b", 0), Turn("b", 1), Turn("b", 2), Turn("", 0)]
