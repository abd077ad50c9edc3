"""The account of how many bytes follow an entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.replication.ledger_writer import UNKNOWN_LAG, EntrySizes


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 120), st.data())
def test_lag_is_exact_up_to_one_mark(sizes: list[int], mark: int, data: st.DataObject):
    account = EntrySizes(100, mark)
    for number, size in enumerate(sizes):
        account.append(100 + number, size)
    last = data.draw(st.integers(99, 99 + len(sizes)))
    end = data.draw(st.integers(100, 100 + len(sizes)))
    exact = sum(sizes[max(0, last - 99) : end - 100])
    assert abs(account.lag(last, end) - exact) < mark + 50
    assert account.lag(99 + len(sizes)) == 0


def test_lag_behind_the_ledger_is_unknown():
    account = EntrySizes(100, 10)
    account.append(100, 5)
    assert account.lag(98) == UNKNOWN_LAG
    assert account.lag(99) == 5


def test_truncation_forgets_marks():
    account = EntrySizes(0, 1)
    for entry in range(1000):
        account.append(entry, 3)
    account.truncate(990)
    assert account.lag(500) == UNKNOWN_LAG
    assert account.lag(995) == 4 * 3


def test_marks_are_as_far_apart_as_their_bytes():
    """Each mark costs memory as long as the log is: one for each `mark_bytes`, not one for each entry."""
    account = EntrySizes(0, 10)
    for entry in range(100):
        account.append(entry, 5)
    assert account.lag(50) == 50 * 5
    assert account.lag(49) == account.lag(49, 200) == 50 * 5
    assert [account.lag(last) for last in (90, 91, 92, 93)] == [50, 40, 40, 30]


def test_a_lag_ends_where_it_is_asked_to():
    account = EntrySizes(0, 1)
    for entry in range(10):
        account.append(entry, 3)
    assert account.lag(4, 5) == 0
    assert account.lag(4, 6) == 3
    assert account.lag(7, 6) == 0
    assert account.lag(4, 10) == account.lag(4) == 15
    assert account.lag(9) == 0


def test_entries_of_one_mark_lack_nothing_of_each_other():
    account = EntrySizes(0, 1000)
    for entry in range(10):
        account.append(entry, 3)
    assert account.lag(3, 6) == 0


def test_truncation_keeps_the_mark_that_is_needed():
    account = EntrySizes(0, 1)
    for entry in range(10):
        account.append(entry, 3)
    account.truncate(0)
    assert account.lag(-1) == 30
    account.truncate(1)
    assert account.lag(-1) == UNKNOWN_LAG
    assert account.lag(0) == 27
    account.truncate(5)
    assert account.lag(3) == UNKNOWN_LAG
    assert account.lag(4) == 15


def test_truncation_before_the_ledger_forgets_no_mark():
    """What is truncated is in an earlier ledger: all marks are still needed."""
    account = EntrySizes(100, 1)
    for entry in range(100, 110):
        account.append(entry, 3)
    account.truncate(50)
    assert [account.lag(last) for last in (99, 104, 108)] == [30, 15, 3]
