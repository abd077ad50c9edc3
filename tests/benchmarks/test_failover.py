"""The figure of the failover benchmark, and the faults that it measures."""

from __future__ import annotations

import pytest

from benchmarks.failover import FAULTS, longest_gap_s


def test_the_longest_gap_lies_between_two_acknowledgements():
    assert longest_gap_s([3_000_000_000, 0, 10_000_000, 3_500_000_000]) == 2.99


def test_fewer_than_two_acknowledgements_have_no_gap():
    with pytest.raises(ValueError, match="empty"):
        longest_gap_s([5])


def test_each_fault_is_told_by_its_name():
    assert [fault.__name__ for fault in FAULTS.values()] == ["kill_with_volume", "stop", "pause", "cut_off"]
