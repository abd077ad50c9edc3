"""The bill: its arithmetic, and that it counts what is declared. `tests/infra` compares it with the templates."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.bill import (
    FLUSH_AGE_S,
    FLUSH_BYTES,
    LISTED_BYTES,
    Load,
    bill,
    external_lines,
    idle_lines,
    other_services,
    ticks_per_month,
    total,
    traffic_lines,
    zone_lines,
)
from headrace.client.reading.linked_history import LISTED_BYTES_MAX
from headrace.model.errors import InvalidRequestError
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from headrace.topology import SEGMENT_STORES, TICKS

LOADS = st.builds(Load, st.floats(0, 1_000), st.integers(0, 100), st.floats(0, 400), st.integers(1, 3))


def dollars(lines, beginning):
    (found,) = [line.dollars for line in lines if line.text.startswith(beginning)]
    return found


def test_clients_outside_pay_for_the_balancer_and_the_way_out():
    """Worked out by hand: 16.43 for the balancer, 10.95 for addresses, 2,628 GB in and three times as many out."""
    within, outside = Load(1, 3, 7), Load(1, 3, 7, is_outside=True)
    assert external_lines(within) == []
    lines = bill(outside)
    assert round(dollars(lines, "load balancer for clients outside"), 2) == 16.43
    assert round(dollars(lines, "public addresses in 3 zones"), 2) == 10.95
    assert round(dollars(lines, "bytes through the load balancer"), 2) == 63.07
    assert round(dollars(lines, "reads of 3 readers that leave AWS"), 2) == 709.56
    assert not [line.text for line in lines if re.match("between zones: (reads|writes)", line.text)], (
        "a name leads to the zone of its store"
    )
    assert len(external_lines(Load(0, 0, 0, is_outside=True))) == 2


@pytest.mark.parametrize(
    ("mb_per_s", "expected"),
    [(1, (221, 685, 3_328, 1_120)), (10, (1_916, 6_592, 3_673, 3_163)), (100, (18_748, 65_657, 23_098, 26_266))],
)
def test_other_services_are_those_of_the_price_lists(mb_per_s, expected):
    """Worked out by hand: three readers, seven days."""
    assert tuple(round(line.dollars) for line in other_services(Load(mb_per_s, 3, 7))) == expected


def test_lines_of_ten_megabytes_a_second():
    """26,280 GB a month. Two of three bytes cross zones to their store, and each of two copies crosses, too."""
    lines = traffic_lines(Load(10, 3, 7))
    assert dollars(lines, "between zones: writes") == pytest.approx(26_280 * 0.02 * 2 / 3)
    assert dollars(lines, "between zones: 3 copies") == pytest.approx(26_280 * 0.02 * 2)
    assert dollars(lines, "between zones: reads of 3 readers") == pytest.approx(26_280 * 0.02 * 2 / 3 * 3)
    assert dollars(lines, "S3: 6,048 GB") == pytest.approx(6_048 * 0.023)
    flushes = 8 / 5 * 730 * 3600  # each container has less than 16 MiB in five seconds
    assert dollars(lines, "S3: requests") == pytest.approx((flushes + 8 / 30 * 730 * 3600) * 5e-6)


def test_history_crosses_no_zones():
    """Worked out by hand: 52,560 GB of three readers are in other zones. Half of them is history in runs of 13 MB."""
    lines = traffic_lines(Load(10, 3, 7, from_s3=0.5))
    assert dollars(lines, "between zones: reads of 3 readers") == pytest.approx(26_280 * 0.02)
    runs, listings = 26_280e9 / (16 * 1024**2 * 8 / 10), 26_280e9 / (64 * 1024**2)
    assert dollars(lines, "links to history") == pytest.approx(runs * 0.4e-6 + listings * 2e-6)
    assert not [line for line in traffic_lines(Load(10, 0, 7, from_s3=0.5)) if line.text.startswith("links")]


@given(LOADS)
def test_zones_without_tails_cost_no_more(load):
    without = replace(load, from_s3=1.0)
    assert total(zone_lines(without)) <= total(zone_lines(load)) + 1e-9


def test_an_idle_deployment_is_the_smallest_bill():
    assert total(bill(Load(0, 0, 0))) == total(idle_lines(spark_job=False))
    assert total(idle_lines()) - total(idle_lines(spark_job=False)) == pytest.approx(36.5)


@given(LOADS, st.floats(0, 100), st.integers(0, 10), st.floats(0, 100))
def test_more_work_never_costs_less(load, mb_per_s, readers, days):
    more = Load(load.mb_per_s + mb_per_s, load.readers + readers, load.retention_days + days, load.copies)
    for lines in (bill, other_services):
        assert total(lines(load)) <= total(lines(more)) + 1e-6
        assert all(line.dollars >= 0 for line in lines(load))
    assert load.stores % SEGMENT_STORES.stores == 0


def test_ticks_are_those_of_a_day_thirty_times():
    minutes_of_a_day = 24 * 60
    ticks = sum(
        len(tick.delays_s(bucket, minute))
        for tick in TICKS
        for bucket in range(tick.buckets)
        for minute in range(minutes_of_a_day)
    )
    assert ticks_per_month() == 30 * ticks


def test_what_the_bill_takes_from_the_store():
    limits = StorageLimits()
    assert (limits.flush_age_s, limits.flush_bytes) == (FLUSH_AGE_S, FLUSH_BYTES)
    assert LISTED_BYTES == LISTED_BYTES_MAX


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((-1, 0, 0), "mb-per-s is -1"),
        ((float("nan"), 0, 0), "mb-per-s is nan"),
        ((1e9, 0, 0), "between 0 and 10000"),
        ((1, 10_000, 0), "readers is 10000"),
        ((1, 1, 1e9), "retention-days"),
        ((1, 1, 1, 4), "copies is 4"),
        ((1, 1, 1, 3, False, 1.1), "from-s3 is 1.1"),
    ],
)
def test_impossible_loads_are_refused(wrong, message):
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        Load(*wrong)
