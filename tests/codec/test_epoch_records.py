"""Epochs and the history of a stream as they are stored: golden values, keys, and exact bounds."""

from __future__ import annotations

import itertools
import json

from golden_records import FIRST, THIRD, TWO_THIRDS, GoldenRecords, Shape
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.records import (
    epoch_record,
    history_record,
)
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.segments import KeyRange, StreamSegment

SCALED = scaled_epoch(FIRST, [5], [KeyRange(0.0, 0.1), KeyRange(0.1, 1 / 3)], 2_000)
DUPLICATE = Epoch(
    2,
    3_000,
    (StreamSegment(2 << 32 | 5, KeyRange(0.0, 1 / 3)), StreamSegment(2 << 32 | 6, KeyRange(1 / 3, 1.0))),
    (StreamSegment(1 << 32 | 7, KeyRange(0.0, 1.0)),),
    duplicate_of=0,
)
SECOND_EPOCH = 1 << 32


SHAPES: dict[str, Shape] = {
    "epoch": (
        SCALED,
        epoch_record.epoch_body,
        epoch_record.epoch_of_body,
        {
            "format": 1,
            "number": 1,
            "created": 2_000,
            "segments": [
                [SECOND_EPOCH | 8, 0.0, 0.1],
                [SECOND_EPOCH | 9, 0.1, THIRD],
                [6, THIRD, TWO_THIRDS],
                [7, TWO_THIRDS, 1.0],
            ],
            "replaced": [[5, 0.0, THIRD]],
            "duplicate_of": None,
        },
    ),
    "history": (3, history_record.history_body, history_record.history_of_body, {"format": 1, "epoch": 3}),
}


class TestEpochRecords(GoldenRecords):
    shapes = SHAPES


def test_keys_are_where_they_always_were():
    assert epoch_record.TRANSITION_SORT == "transition"
    assert epoch_record.epoch_sort(7) == "epoch/0000000007"
    assert history_record.history_sort(1_000) == "history/00000000000000001000"


def test_a_duplicate_epoch_names_what_it_repeats():
    body = epoch_record.epoch_body(DUPLICATE)
    assert body["duplicate_of"] == 0
    assert epoch_record.epoch_of_body(json.loads(json.dumps(body))) == DUPLICATE


@given(count=st.integers(1, 300), parts=st.integers(1, 9), time_ms=st.integers(0, 2**45))
def test_epochs_come_back_with_their_exact_bounds(count: int, parts: int, time_ms: int):
    first = Epoch.first(count, 0, time_ms)
    one = first.segments[count // 2]
    width = one.key_range.high - one.key_range.low
    bounds = sorted(
        {one.key_range.low, one.key_range.high, *(one.key_range.low + width * i / parts for i in range(parts))}
    )
    new = [KeyRange(low, high) for low, high in itertools.pairwise(bounds)]
    epoch = scaled_epoch(first, [one.segment_id], new, time_ms)
    text = json.dumps(epoch_record.epoch_body(epoch))
    assert epoch_record.epoch_of_body(json.loads(text)) == epoch


@given(times=st.lists(st.integers(0, 10**19), min_size=2, max_size=10))
def test_history_sorts_as_time_does(times: list[int]):
    assert sorted(times) == sorted(times, key=history_record.history_sort)
