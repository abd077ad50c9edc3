"""The records of retention and subscribers: golden values, keys, and refusal of what does not decode."""

from __future__ import annotations

from cut_histories import History, histories
from golden_records import GoldenRecords, Shape
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.records import retention_record, subscriber_record
from headrace.codec.records.retention_record import DueStream
from headrace.model.retention import RetentionCut, RetentionState
from headrace.model.subscribers import Subscriber
from headrace.model.truncation import Truncation

PLACE = History.begin(2).tail()
PLACE_BODY = {
    "scope": "s",
    "stream": "t",
    "positions": [[0, 0], [1, 0]],
    "segments": [[0, 0.0, 0.5], [1, 0.5, 1.0]],
}
SHAPES: dict[str, Shape] = {
    "retention": (
        RetentionState(7, 5, (RetentionCut(6, 2**40), RetentionCut(7, 2**41))),
        retention_record.retention_body,
        retention_record.retention_of_body,
        {"format": 1, "due": 7, "head_time": 5, "cuts": [[6, 2**40], [7, 2**41]]},
    ),
    "retention cut": (
        Truncation(PLACE, 3, 2**40),
        retention_record.retention_cut_body,
        retention_record.retention_cut_of_body,
        {"format": 1, "cut": PLACE_BODY, "first_epoch": 3, "size_bytes": 2**40},
    ),
    "due retention": (
        DueStream(9, "s", "t", 4),
        retention_record.retention_due_body,
        retention_record.retention_due_of_body,
        {"format": 1, "due": 9, "scope": "s", "stream": "t", "first_number": 4},
    ),
    "subscriber": (
        Subscriber("s/group", 3, PLACE, 11),
        subscriber_record.subscriber_body,
        subscriber_record.subscriber_of_body,
        {"format": 1, "name": "s/group", "generation": 3, "position": PLACE_BODY, "updated": 11},
    ),
}


WITHOUT_A_POLICY: dict[str, Shape] = {
    "retention": (
        RetentionState(None, 5),
        retention_record.retention_body,
        retention_record.retention_of_body,
        {"format": 1, "due": None, "head_time": 5, "cuts": []},
    ),
}


class TestRetentionRecords(GoldenRecords):
    shapes = SHAPES


class TestRetentionWithoutAPolicy(GoldenRecords):
    shapes = WITHOUT_A_POLICY


@given(histories(steps_max=8), st.integers(0, 2**62), st.integers(0, 2**62))
def test_cuts_and_subscribers_come_back(history: History, size: int, time_ms: int):
    place = Truncation(history.tail(), len(history.epochs) - 1, size)
    assert retention_record.retention_cut_of_body(retention_record.retention_cut_body(place)) == place
    subscriber = Subscriber("g", 0, history.tail(), time_ms)
    assert subscriber_record.subscriber_of_body(subscriber_record.subscriber_body(subscriber)) == subscriber


@given(st.lists(st.integers(0, 2**60), min_size=2, max_size=2))
def test_what_is_due_earlier_comes_first(times: list[int]):
    one, other = (retention_record.retention_due_sort(DueStream(at, "s", "t", 0)) for at in times)
    assert (one < other) == (times[0] < times[1])
    assert (one < retention_record.retention_due_last(times[1])) == (times[0] < times[1])


def test_each_incarnation_has_its_own_keys():
    incarnations = range(12)
    keys = [
        build
        for number in incarnations
        for build in (
            retention_record.retention_sort(number),
            retention_record.retention_cut_sort(number, 5),
            retention_record.retention_due_sort(DueStream(5, "s", "t", number)),
            subscriber_record.subscriber_sort(number, "g"),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert retention_record.retention_cut_sort(3, 5) == "retention-cut/0000000003/00000000000000000005"
    assert subscriber_record.subscriber_sort(3, "s/g") == "subscriber/0000000003/s/g"
    assert retention_record.retention_due_partition(7) == "retention-due/0007"
