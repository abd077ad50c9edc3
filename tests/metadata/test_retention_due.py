"""The index of due retention: golden value and keys."""

from __future__ import annotations

from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.retention_records import (
    DueStream,
    decode_retention_due,
    retention_due_body,
    retention_due_key,
    retention_due_last,
    retention_due_partition,
    retention_due_sort,
)
from headrace.ports.metadata_store import Key

GOLDEN = {"format": 1, "due": 9, "scope": "s", "stream": "t", "first_number": 4}


class TestRetentionDue(GoldenRecords):
    shapes = {"due retention": (DueStream(9, "s", "t", 4), retention_due_body, decode_retention_due, GOLDEN)}


def test_failures_are_stored_if_there_were_any():
    failed = DueStream(9, "s", "t", 4, 2)
    assert retention_due_body(failed) == GOLDEN | {"failures": 2}
    assert decode_retention_due(retention_due_body(failed)) == failed


def test_each_incarnation_has_its_own_key():
    key = retention_due_key(DueStream(5, "s", "t", 4))
    assert key == Key("retention-due/0000", "00000000000000000005/s/t/0000000004")
    assert retention_due_key(DueStream(5, "s", "t", 3)) != key
    assert retention_due_partition(7) == "retention-due/0007"


@given(st.lists(st.integers(0, 2**60), min_size=2, max_size=2))
def test_what_is_due_earlier_comes_first(times: list[int]):
    first, second = (retention_due_sort(DueStream(at, "s", "t", 0)) for at in times)
    assert (first < second) == (times[0] < times[1])
    assert (first < retention_due_last(times[1])) == (times[0] < times[1])
