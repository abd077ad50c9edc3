"""The pause before a retry doubles up to its bound, in every unit, and its jitter stays within it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.backoff import (
    BACKOFF_MAX_MS,
    backoff_ms,
    doubled_pause,
    failures_in_a_row,
    full_jitter,
    half_jitter,
)


@pytest.mark.parametrize(
    ("failures", "pause_s", "pause_ms"),
    [(0, 0.5, 500), (1, 0.5, 500), (2, 1.0, 1000), (3, 2.0, 2000), (4, 3.0, 3000), (10**6, 3.0, 3000)],
)
def test_the_pause_doubles_up_to_its_bound(failures: int, pause_s: float, pause_ms: int):
    assert doubled_pause(failures, 0.5, 3.0) == pause_s
    pause = doubled_pause(failures, 500, 3000)
    assert (pause, type(pause)) == (pause_ms, int)


@given(st.integers(1, 1000), st.floats(1e-3, 10.0), st.floats(10.0, 1e4))
def test_a_later_pause_is_never_shorter(failures: int, first: float, most: float):
    assert first <= doubled_pause(failures, first, most) <= doubled_pause(failures + 1, first, most) <= most


@given(st.floats(0.0, 1e6), st.floats(0.0, 1.0, exclude_max=True))
def test_jitter_stays_within_the_pause(pause: float, fraction: float):
    assert 0.0 <= full_jitter(pause, fraction) <= pause
    assert pause / 2 <= half_jitter(pause, fraction) <= pause


def test_jitter_uses_the_whole_range():
    assert [full_jitter(8.0, fraction) for fraction in (0.0, 0.25, 0.5)] == [0.0, 2.0, 4.0]
    assert [half_jitter(8.0, fraction) for fraction in (0.0, 0.25, 0.5)] == [4.0, 5.0, 6.0]


def test_failures_count_until_an_attempt_must_have_succeeded():
    assert [backoff_ms(failures) for failures in (1, 2, 3, 4)] == [10_000, 20_000, 40_000, BACKOFF_MAX_MS]
    assert failures_in_a_row(3, 1_000, 1_000 + BACKOFF_MAX_MS) == 3
    assert failures_in_a_row(3, 1_000, 1_001 + BACKOFF_MAX_MS) == 0
