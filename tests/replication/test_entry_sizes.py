"""The account of how many bytes follow an entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.replication.entry_sizes import UNKNOWN_LAG, EntrySizes


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
