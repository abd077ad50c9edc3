"""Percentiles of a histogram that needs the same memory for any number of values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.bench_run import MICROSECONDS_MAX, LatencyHistogram

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
