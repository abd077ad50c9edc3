"""Which segments of a container are watched, what counts for their rates, and when they are reported."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.names import transaction_segment_name
from headrace.model.rates import COOLDOWN_S, SILENT_S, SWEEP_EVERY_S, TICK_S, ScalingReport
from headrace.model.segment_attributes import SCALE_POLICY_RATE, SCALE_POLICY_TYPE
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.container_rates import ContainerRates, WatchedSegment
from headrace.segmentstore.containers.segment import AcceptedState, Segment

NAME, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
EVENTS, KILOBYTES = wire.SCALE_TYPE_EVENTS_PER_SEC, wire.SCALE_TYPE_KBYTES_PER_SEC
POOL = BlockPool(1 << 20, 64 << 10)


class Reports:
    def __init__(self) -> None:
        self.reports: list[ScalingReport] = []

    def report(self, report: ScalingReport) -> None:
        self.reports.append(report)


class Made:
    """The rates of a container, which are started unless the test does it."""

    def __init__(self, *, is_started: bool = True) -> None:
        self.clock = ManualClock()
        self.reports = Reports()
        reports: Any = self.reports
        self.rates = ContainerRates(self.clock, reports)
        if is_started:
            self.rates.start(())

    def segment(self, kind: int = EVENTS, target: int = 10, name: str = NAME) -> Segment:
        segment = Segment(1, name, POOL, AcceptedState({SCALE_POLICY_TYPE: kind, SCALE_POLICY_RATE: target}, 0))
        self.rates.watch(segment)
        return segment

    def watched(self, kind: int = EVENTS, target: int = 10, name: str = NAME) -> WatchedSegment:
        watched = self.segment(kind, target, name).watched
        assert watched is not None
        return watched

    def pass_time(self, seconds: float, **amounts: float) -> None:
        """Ticks, with these amounts in each of them."""
        for _ in range(int(seconds // (TICK_S + 1))):
            if amounts:
                for each in self.rates._watched.values():
                    each.record(amounts.get("byte_count", 0), amounts.get("event_count", 0))
            self.clock.advance(int((TICK_S + 1) * 1000))
            self.rates.tick()


@pytest.mark.parametrize("kind", [EVENTS, KILOBYTES])
@pytest.mark.parametrize("target", [1, 10])
def test_segment_with_a_policy_by_rate_is_watched(kind: int, target: int):
    made = Made()
    watched = made.watched(kind, target)
    assert (watched.name, watched.counts_events, watched.target, len(made.rates)) == (NAME, kind == EVENTS, target, 1)
    assert watched.touched_s == watched.rates.started_s == made.clock.monotonic_s()


def seal(segment: Segment) -> None:
    segment.accepted.sealed = True


def remove(segment: Segment) -> None:
    segment.accepted.removed = True


def fix(segment: Segment) -> None:
    segment.accepted.attributes[SCALE_POLICY_TYPE] = wire.SCALE_TYPE_NONE


def end_rate(segment: Segment) -> None:
    segment.accepted.attributes[SCALE_POLICY_RATE] = 0


@pytest.mark.parametrize("change", [seal, remove, fix, end_rate])
def test_watch_ends_with_what_it_is_for(change: Any):
    made = Made()
    segment = made.segment()
    watched = segment.watched
    assert watched is not None
    watched.record(1, 1)
    change(segment)
    made.rates.watch(segment)
    assert (segment.watched, len(made.rates), watched.retired) == (None, 0, True)
    made.pass_time(SILENT_S + 2 * SWEEP_EVERY_S)
    assert (made.reports.reports, len(made.rates)) == ([], 0)


def test_transactions_are_not_watched():
    made = Made()
    assert made.segment(name=transaction_segment_name(NAME, 1)).watched is None
    assert len(made.rates) == 0


def test_segments_in_memory_are_watched_from_the_start():
    """Before it, a recovery would count the writes that it replays. Without reports none is watched."""
    made = Made(is_started=False)
    segments = [made.segment(name=NAME), made.segment(name=OTHER)]
    assert [each.watched for each in segments] == [None, None]
    made.rates.start(segments)
    assert [each.watched is not None for each in segments] == [True, True]
    unreported = ContainerRates(made.clock, None)
    unreported.start([segment := made.segment(kind=0)])
    segment.accepted.attributes[SCALE_POLICY_TYPE] = EVENTS
    unreported.watch(segment)
    assert (segment.watched, len(unreported)) == (None, 0)


def test_new_target_keeps_what_was_counted():
    made = Made()
    segment = made.segment()
    watched = segment.watched
    segment.accepted.attributes[SCALE_POLICY_RATE] = 99
    made.rates.watch(segment)
    assert segment.watched is watched
    assert watched is not None
    assert (watched.target, watched.retired) == (99, False)
    made.clock.advance(7000)
    segment.accepted.attributes[SCALE_POLICY_TYPE] = KILOBYTES
    made.rates.watch(segment)
    again = segment.watched
    assert again is not None
    assert (again is watched, watched.retired, again.retired, again.counts_events) == (False, True, False, False)
    assert again.rates.started_s == made.clock.monotonic_s()
    assert len(made.rates) == 1


def test_segment_that_comes_back_to_memory_keeps_its_watch():
    made = Made()
    assert made.segment().watched is made.segment().watched
    assert len(made.rates) == 1


@pytest.mark.parametrize(("kind", "amount"), [(EVENTS, 12.0), (KILOBYTES, 5.0)])
def test_tick_counts_what_came_since_the_last_one(kind: int, amount: float):
    made = Made()
    watched = made.watched(kind)
    for events in (4, 8):
        watched.record(2560, events)
    made.clock.advance(int(TICK_S * 1000))
    made.rates.tick()
    assert watched.rates.averages == (0.0,) * 4, "a tick takes more time"
    made.clock.advance(1000)
    made.rates.tick()
    assert watched.rates.averages[0] == pytest.approx(amount / (TICK_S + 1))
    assert (watched.pending, watched.is_touched, watched.touched_s) == (0.0, False, made.clock.monotonic_s())
    before = watched.rates
    made.clock.advance(60_000)
    made.rates.tick()
    assert watched.rates is before, "only segments written to since the last tick are looked at"


@pytest.mark.parametrize(("open_ms", "counted"), [(1000, 40), (5000, 40), (20_000, 10)])
def test_transaction_counts_by_its_share_of_a_tick(open_ms: int, counted: float):
    made = Made()
    by_events, by_bytes = made.watched(), made.watched(KILOBYTES, name=OTHER)
    for watched in (by_events, by_bytes):
        watched.record_merge(40 * 1024, 40, open_ms)
    assert (by_events.pending, by_bytes.pending) == (counted, counted * 1024)
    assert len(made.rates._touched) == 2


@pytest.mark.parametrize(("events", "kind"), [(600, "hot"), (1, "cold")])
def test_segment_that_does_not_fit_its_target_is_reported(events: int, kind: str):
    made = Made()
    made.watched(target=10)
    made.pass_time(COOLDOWN_S, event_count=events)
    assert made.reports.reports == []
    made.pass_time(2 * SILENT_S - COOLDOWN_S, event_count=events)
    first = made.reports.reports[0]
    assert {each.kind for each in made.reports.reports} == {kind}
    assert (first.segment, first.silent, first.splits > 0) == (NAME, False, kind == "hot")
    assert made.clock.now_ms() - 2 * SILENT_S * 1000 < first.at_ms <= made.clock.now_ms()
    counts = {"hot": made.rates.hot_reports, "cold": made.rates.cold_reports}
    assert counts == {"hot": 0, "cold": 0, kind: len(made.reports.reports)}


def test_silent_segment_is_reported_once_and_watched_again():
    made = Made()
    watched, other = made.watched(), made.watched(name=OTHER)
    made.clock.advance(int((SILENT_S - 1) * 1000))
    made.rates.tick()
    assert (made.reports.reports, len(made.rates)) == ([], 2)
    other.touched_s += 2
    made.clock.advance(int(SWEEP_EVERY_S * 1000) - 1)
    made.rates.tick()
    assert made.reports.reports == [], "a sweep is not due"
    other.touched_s = made.clock.monotonic_s() - SILENT_S + 1
    made.clock.advance(1)
    made.rates.tick()
    assert made.reports.reports == [ScalingReport(NAME, "cold", made.clock.now_ms(), silent=True)]
    assert (len(made.rates), made.rates.cold_reports, made.rates.hot_reports) == (1, 1, 0)
    made.pass_time(SILENT_S + SWEEP_EVERY_S)
    assert [each.segment for each in made.reports.reports] == [NAME, OTHER]
    watched.record(0, 1)
    made.rates.tick()
    assert (len(made.rates), watched.rates.started_s) == (1, made.clock.monotonic_s())
    assert made.rates._watched == {NAME: watched}
    assert made.rates._touched == [watched], "its events count in the next tick"


def test_segment_is_silent_from_its_time_on():
    made = Made()
    made.clock.advance(1000)
    made.watched()
    made.clock.advance(int(SILENT_S * 1000))
    made.rates.tick()
    assert [each.silent for each in made.reports.reports] == [True]
