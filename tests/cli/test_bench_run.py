"""The load of `headrace bench`: its histogram, and how what was written is compared with what comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.bench_run import (
    EVENT_BYTES_MIN,
    KEYS_PER_WRITER,
    MICROSECONDS_MAX,
    NS_PER_S,
    BenchPlan,
    Due,
    EventMaker,
    LatencyHistogram,
    Verification,
    due_events,
)
from headrace.model.errors import InvalidRequestError

PRECISION = 1 / 64


@given(
    values=st.lists(st.integers(0, MICROSECONDS_MAX), min_size=1, max_size=200),
    percent=st.sampled_from([50.0, 90.0, 99.0, 99.9, 100.0]),
)
def test_percentiles_are_near_those_of_the_values(values: list[int], percent: float):
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    exact = sorted(values)[max(1, -(-len(values) * percent // 100)).__int__() - 1]
    shown = histogram.percentile_us(percent)
    assert shown is not None
    assert exact <= shown <= exact * (1 + PRECISION)
    assert (histogram.count, histogram.max_us) == (len(values), max(values))


def test_no_values_have_no_percentile():
    assert LatencyHistogram().percentile_us(50) is None


def test_a_value_counts_as_often_as_it_is_said():
    histogram = LatencyHistogram()
    histogram.record(10, 99)
    histogram.record(1_000)
    assert (histogram.percentile_us(99), histogram.percentile_us(99.9)) == (10, 1_000)


@pytest.mark.parametrize(("given_us", "counted_us"), [(-5, 0), (MICROSECONDS_MAX + 1, MICROSECONDS_MAX)])
def test_what_no_clock_shows_is_bounded(given_us: int, counted_us: int):
    histogram = LatencyHistogram()
    histogram.record(given_us)
    assert histogram.percentile_us(50) == counted_us


PLAN = BenchPlan(event_bytes=50, seconds=10, writers=2, rate=None, segments=2)
RUN = b"run-0001"
FILLER = bytes(range(50))


@pytest.mark.parametrize(
    "wrong",
    [
        {"event_bytes": EVENT_BYTES_MIN - 1},
        {"event_bytes": 8 * 1024 * 1024 + 1},
        {"seconds": 0},
        {"seconds": 86_401},
        {"writers": 65},
        {"segments": 101},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"rate": 1e8},
    ],
)
def test_values_out_of_bounds_are_refused(wrong: dict[str, float]):
    with pytest.raises(InvalidRequestError, match=f"--{next(iter(wrong)).replace('_', '-')} is"):
        replace(PLAN, **wrong)


def test_a_rate_says_when_events_are_due():
    plan = replace(PLAN, rate=20.0)  # of two writers: ten of each
    assert due_events(plan, 0, 0, 0) == Due(1, 0)
    assert due_events(plan, 0, 1, NS_PER_S // 20) == Due(0, NS_PER_S // 10)
    assert due_events(plan, 0, 1, NS_PER_S // 10) == Due(1, NS_PER_S // 10)


def test_a_writer_that_was_held_up_catches_up():
    plan = replace(PLAN, rate=20.0)
    assert due_events(plan, 0, 5, NS_PER_S) == Due(6, NS_PER_S // 2)
    assert due_events(plan, 0, 5, 100 * NS_PER_S).events == plan.batch_events


def test_without_a_rate_a_batch_is_always_due():
    assert due_events(PLAN, 0, 7, 42) == Due(PLAN.batch_events, 42)
    assert replace(PLAN, event_bytes=1_000_000).batch_events == 1


def _events(writer: int, count: int, due_ns: int = 5) -> list[bytes]:
    return EventMaker(RUN, writer, PLAN.event_bytes, FILLER).make(count, due_ns)[0]


def test_events_have_their_size_and_keys_take_turns():
    events, keys = EventMaker(RUN, 1, PLAN.event_bytes, FILLER).make(KEYS_PER_WRITER + 1, 5)
    assert {len(event) for event in events} == {PLAN.event_bytes}
    assert keys[0] == keys[KEYS_PER_WRITER]
    assert len(set(keys)) == KEYS_PER_WRITER
    assert len(set(events)) == len(events)


def test_events_of_all_writers_are_verified():
    checks = Verification(RUN, PLAN, FILLER)
    assert checks.add(_events(0, 40)) == (40, [(5, 40)])
    assert checks.add(_events(1, 40, due_ns=6)) == (40, [(6, 40)])
    assert checks.is_right(80)
    assert not checks.is_right(81)
    assert checks.missing(81) == 1


def test_events_of_others_do_not_count():
    checks = Verification(RUN, PLAN, FILLER)
    others = EventMaker(b"run-0002", 0, PLAN.event_bytes, FILLER).make(3, 5)[0]
    assert checks.add([b"", b"{}", *others]) == (0, [])
    assert checks.is_right(0)


FAULTS = {
    "twice": (lambda events: [*events, events[-1]], {"repeated": 1}),
    "lost": (lambda events: [*events[:3], *events[4:]], {"skipped": 1}),
    "swapped": (
        lambda events: [events[KEYS_PER_WRITER], *events[1:KEYS_PER_WRITER], events[0], *events[KEYS_PER_WRITER + 1 :]],
        {"repeated": 1, "skipped": 1},
    ),
    "changed": (lambda events: [*events[:-1], events[-1][:-1] + b"?"], {"damaged": 1}),
    "cut off": (lambda events: [*events[:-1], events[-1][:-1]], {"damaged": 1}),
    "of the run only by name": (lambda events: [*events[:-1], RUN], {"damaged": 1}),
    "of a writer that is not": (lambda events: [*events[:-1], _events(9, 1)[0]], {"damaged": 1}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_stream_are_noticed(fault: str):
    spoil, counted = FAULTS[fault]
    checks = Verification(RUN, PLAN, FILLER)
    checks.add(spoil(_events(0, 2 * KEYS_PER_WRITER)))
    assert not checks.is_right(2 * KEYS_PER_WRITER)
    assert {name: value for name in ("repeated", "skipped", "damaged") if (value := getattr(checks, name))} == counted
