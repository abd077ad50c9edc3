"""Decaying rates and what follows from them. The golden figures were computed by hand from the published rules."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.rates import (
    COOLDOWN_S,
    MUTE_S,
    REPORT_EVERY_S,
    TICK_S,
    ScalingReport,
    SegmentRates,
    amortized,
    is_cold,
    splits_wanted,
    ticked,
    updated,
)

ZERO = (0.0, 0.0, 0.0, 0.0)
TWENTY = (20.0, 20.0, 20.0, 20.0)
AMOUNTS = st.floats(0, 1e9)
AVERAGES = st.tuples(*[st.floats(1e-3, 1e9)] * 4)


def close(averages):
    return pytest.approx(averages, rel=1e-9, abs=1e-12)


def test_the_first_amount_sets_all_averages():
    assert updated(ZERO, 100, 5) == TWENTY


def test_three_ticks_without_anything():
    assert ticked(TWENTY, 0, 15) == close((17.6499380517, 19.0245884900, 19.5061982406, 19.7515560099))


def test_a_tick_that_is_late_counts_all_of_its_time():
    assert ticked(TWENTY, 150, 7.5) == close(TWENTY)


def test_an_amount_after_a_pause_belongs_to_the_end_of_the_pause():
    # One tick of nothing, then 300 in the remaining 7 s: 42.857 a second.
    two, *_ = ticked(TWENTY, 300, 12)
    assert two == pytest.approx(20.149911552, rel=1e-9)


@given(
    averages=AVERAGES,
    amount=AMOUNTS,
    idle_ticks=st.integers(0, 60),
    rest_s=st.floats(TICK_S, 1.99 * TICK_S),
)
def test_idle_ticks_are_taken_together(averages, amount, idle_ticks, rest_s):
    expected = averages
    for _ in range(idle_ticks):
        expected = updated(expected, 0, TICK_S)
    expected = updated(expected, amount, rest_s)
    found = ticked(averages, amount, idle_ticks * TICK_S + rest_s)
    assert found == pytest.approx(expected, rel=1e-6)


@given(averages=AVERAGES, amount=AMOUNTS)
def test_an_average_never_leaves_what_it_is_made_of(averages, amount):
    for before, after in zip(averages, updated(averages, amount, TICK_S), strict=True):
        low, high = sorted((before, amount / TICK_S))
        assert low - 1e-6 * high <= after <= high * (1 + 1e-6)


@given(amount=st.floats(1, 1e6), ticks=st.integers(1, 300))
def test_a_steady_load_is_its_own_average(amount, ticks):
    averages = ZERO
    for _ in range(ticks):
        averages = ticked(averages, amount, TICK_S)
    assert averages == close((amount / TICK_S,) * 4)


@pytest.mark.parametrize(
    ("averages", "age_s", "splits"),
    [
        ((50.1, 0, 0, 0), 121, 5),
        ((50.1, 0, 0, 0), 120, 0),
        ((50.0, 0, 0, 0), 121, 0),
        ((0, 20.1, 0, 0), 301, 2),
        ((0, 20.1, 0, 0), 300, 0),
        ((0, 20.0, 0, 0), 301, 0),
        ((0, 0, 10.1, 0), 601, 2),
        ((0, 0, 10.1, 0), 600, 0),
        ((0, 0, 10.0, 0), 601, 0),
        ((0, 0, 39.9, 0), 601, 3),
        ((0, 0, 10.1, 900), 601, 2),
        ((30, 0, 40, 0), 601, 4),
    ],
)
def test_hot(averages, age_s, splits):
    assert splits_wanted(averages, 10, age_s) == splits


@pytest.mark.parametrize(
    ("averages", "age_s", "cold"),
    [
        ((9.9, 9.9, 9.9, 4.9), 1201, True),
        ((9.9, 9.9, 9.9, 4.9), 1200, False),
        ((10, 9.9, 9.9, 4.9), 1201, False),
        ((9.9, 10, 9.9, 4.9), 1201, False),
        ((9.9, 9.9, 10, 4.9), 1201, False),
        ((9.9, 9.9, 9.9, 5), 1201, False),
    ],
)
def test_cold(averages, age_s, cold):
    assert is_cold(averages, 10, age_s) is cold


@given(
    shares=st.tuples(*[st.floats(0, 2) | st.floats(0, 100)] * 4), target=st.integers(1, 10**6), age_s=st.floats(0, 1e4)
)
def test_no_segment_is_hot_and_cold_at_once_for_long(shares, target, age_s):
    averages = tuple(share * target for share in shares)
    splits = splits_wanted(averages, target, age_s)
    assert splits == 0 or splits >= 2
    if age_s > COOLDOWN_S and is_cold(averages, target, age_s):
        assert splits == 0


def test_a_transaction_counts_its_share_of_a_tick():
    assert amortized(1200, 60) == 100
    assert amortized(1200, 5) == 1200
    assert amortized(1200, 4.9) == 1200
    assert amortized(1200, 5.5) == pytest.approx(1200 * 5 / 5.5)


def _written(per_s: float, seconds: float, *, target: float, rates: SegmentRates | None = None, since: float = 0.0):
    """Reports, with the second they came, of a segment that is written to steadily from `since` on."""
    rates, found = rates or SegmentRates.first_seen(since), []
    now_s = since
    while now_s < since + seconds:
        now_s += 6
        rates = rates.after_tick(per_s * 6, now_s)
        rates, report = rates.judged("s", target, now_s, int(now_s * 1000))
        if report is not None:
            found.append((now_s, report))
    return rates, found


def test_reports_wait_for_the_cooldown_and_ten_minutes_between():
    _, found = _written(35, 3000, target=10)
    times = [now_s for now_s, _ in found]
    assert times[0] > COOLDOWN_S
    assert times[0] <= COOLDOWN_S + REPORT_EVERY_S
    assert all(after - before >= MUTE_S for before, after in itertools.pairwise(times))
    assert len(times) == 4
    assert found[0][1] == ScalingReport("s", "hot", int(times[0] * 1000), splits=3)


def test_a_cold_segment_is_reported_after_twenty_minutes():
    _, found = _written(4, 2300, target=10)
    assert [report.kind for _, report in found] == ["cold", "cold"]
    assert found[0][0] > 1200
    assert not found[0][1].silent


def test_a_hot_report_mutes_both_kinds_a_cold_one_only_cold():
    rates, found = _written(4, 1300, target=10)
    assert [report.kind for _, report in found] == ["cold"]
    rates, found = _written(500, 300, target=10, rates=rates, since=1400)
    assert [report.kind for _, report in found] == ["hot"]
    assert rates.cold_muted_until_s == rates.hot_muted_until_s == found[0][0] + MUTE_S


LATER_S = 10_000.0
COLD_AGE_S = 1200.0


def _seen_since(start_s: float, averages: tuple[float, float, float, float], **times_s: float) -> SegmentRates:
    return replace(SegmentRates.first_seen(start_s), averages=averages, **times_s)


@pytest.mark.parametrize("start_s", [0.0, LATER_S])
def test_a_segment_is_judged_after_its_cooldown(start_s):
    rates = _seen_since(start_s, (500.0,) * 4)
    assert rates.judged("s", 10, start_s + COOLDOWN_S, 0) == (rates, None)
    _, report = rates.judged("s", 10, start_s + COOLDOWN_S + 0.5, 0)
    assert report == ScalingReport("s", "hot", 0, splits=50)


@pytest.mark.parametrize("start_s", [0.0, LATER_S])
def test_a_segment_is_cold_at_an_age_of_its_own(start_s):
    rates = _seen_since(start_s, (1.0,) * 4)
    assert rates.judged("s", 10, start_s + COLD_AGE_S, 0)[1] is None
    assert rates.judged("s", 10, start_s + COLD_AGE_S + 0.5, 0)[1] == ScalingReport("s", "cold", 0)


def test_a_check_without_a_report_is_noted():
    rates = _seen_since(0.0, (10.0,) * 4)
    looked, report = rates.judged("s", 10, LATER_S, 0)
    assert (looked, report) == (replace(rates, looked_s=LATER_S), None)
    hot = replace(looked, averages=(500.0,) * 4)
    assert hot.judged("s", 10, LATER_S + REPORT_EVERY_S - 0.5, 0) == (hot, None)
    assert hot.judged("s", 10, LATER_S + REPORT_EVERY_S, 0)[1] is not None


@pytest.mark.parametrize(
    ("average", "kind", "other_until_s"),
    [(500.0, "hot", "cold_muted_until_s"), (1.0, "cold", "hot_muted_until_s")],
)
def test_a_report_of_a_kind_waits_until_its_time(average, kind, other_until_s):
    own_until_s = f"{kind}_muted_until_s"
    muted = _seen_since(0.0, (average,) * 4, **{own_until_s: LATER_S, other_until_s: 2 * LATER_S})
    assert muted.judged("s", 10, LATER_S - 0.5, 0) == (replace(muted, looked_s=LATER_S - 0.5), None)
    after, report = muted.judged("s", 10, LATER_S, 0)
    assert report is not None
    assert report.kind == kind
    assert after.cold_muted_until_s == LATER_S + MUTE_S
    assert after.hot_muted_until_s == (LATER_S + MUTE_S if kind == "hot" else 2 * LATER_S)


def test_a_tick_is_due_after_its_length():
    rates = replace(SegmentRates.first_seen(0.0), ticked_s=LATER_S)
    assert not rates.tick_due(LATER_S + TICK_S)
    assert rates.tick_due(LATER_S + TICK_S + 0.5)
