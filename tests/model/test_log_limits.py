"""Tests for limits of log lines."""

from __future__ import annotations

from headrace.model.log_limits import LOGGED_EVERY_S, LogLimit


def test_first_line_is_allowed_at_any_time() -> None:
    assert LogLimit().allows(0.0)
    assert LogLimit().allows(-1e9)


def test_next_line_is_allowed_after_its_time() -> None:
    limit = LogLimit(2.0)
    assert [limit.allows(now_s) for now_s in (5.0, 6.9, 7.0, 7.1, 9.0)] == [True, False, True, False, True]


def test_refused_lines_do_not_postpone_the_next() -> None:
    limit = LogLimit()
    times = [index * LOGGED_EVERY_S / 4 for index in range(9)]
    assert [index for index, now_s in enumerate(times) if limit.allows(now_s)] == [0, 4, 8]


def test_each_kind_has_its_own_time() -> None:
    limit = LogLimit(2.0)
    assert limit.allows(1.0, "total")
    assert limit.allows(2.0, "address")
    assert not limit.allows(2.0, "total")
    assert limit.allows(3.0, "total")
