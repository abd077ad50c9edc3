"""How fast copies catch up, by what is appended, and how much a copy that lags slows down the writers of its log."""

from __future__ import annotations

import pytest

from headrace.replication.bounds import CATCH_UP_BYTES_PER_S
from headrace.replication.member_states import (
    CATCH_UP_PER_APPENDED,
    LAG_FILL_FROM,
    LAG_FILL_MAX,
    LAG_PATIENCE_S,
    LAG_RAMP_S,
    RATE_OVER_S,
    AppendRate,
    catch_up_bytes_per_s,
    lag_fill,
)


def test_catching_up_is_faster_than_appending():
    assert catch_up_bytes_per_s(0.0) == CATCH_UP_BYTES_PER_S
    busy = float(CATCH_UP_BYTES_PER_S)
    assert catch_up_bytes_per_s(busy) == CATCH_UP_PER_APPENDED * busy > busy


@pytest.mark.parametrize(
    ("share", "fill"), [(0.0, LAG_FILL_FROM), (0.5, (LAG_FILL_FROM + LAG_FILL_MAX) / 2), (1, LAG_FILL_MAX), (9, 0.9)]
)
def test_writers_wait_longer_the_longer_a_copy_lags(share: float, fill: float):
    assert lag_fill(LAG_PATIENCE_S + share * LAG_RAMP_S) == pytest.approx(fill)


def test_a_copy_that_lags_for_a_moment_slows_down_no_writer():
    assert lag_fill(0.0) == lag_fill(LAG_PATIENCE_S - 0.1) == 0.0


def test_the_rate_is_of_the_last_measurement():
    rate = AppendRate(100.0)
    assert rate.look(100.0) == 0.0
    rate.count(300)
    rate.count(100)
    assert rate.look(100.0 + RATE_OVER_S / 2) == 0.0, "it is not measured yet"
    assert rate.look(100.0 + RATE_OVER_S) == 400 / RATE_OVER_S
    rate.count(50)
    assert rate.look(100.5 + RATE_OVER_S) == 400 / RATE_OVER_S
    assert rate.look(104.0 + RATE_OVER_S) == 50 / 4.0, "a pause is one measurement"
    assert rate.look(106.0 + RATE_OVER_S) == 0.0
