"""The record of when an epoch began: golden value and key."""

from __future__ import annotations

from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.history_records import decode_history, history_body, history_key, history_sort, history_time
from headrace.ports.metadata_store import Key


class TestEpochHistory(GoldenRecords):
    shapes = {"history": (3, history_body, decode_history, {"format": 1, "epoch": 3})}


def test_key():
    assert history_key("s", "t", 1_000) == Key("stream/s/t", "history/00000000000000001000")
    assert history_time(history_sort(1_000)) == 1_000


@given(times=st.lists(st.integers(0, 10**19), min_size=2, max_size=10))
def test_history_sorts_as_time_does(times: list[int]):
    assert sorted(times) == sorted(times, key=history_sort)
