"""The record of an epoch: golden value, key and exact bounds."""

from __future__ import annotations

import itertools
import json

from golden_records import FIRST, THIRD, TWO_THIRDS, GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.epoch import decode_epoch, epoch_body, epoch_key
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.segments import KeyRange, StreamSegment
from headrace.ports.metadata_store import Key

SCALED = scaled_epoch(FIRST, [5], [KeyRange(0.0, 0.1), KeyRange(0.1, 1 / 3)], 2_000)
DUPLICATE = Epoch(
    2,
    3_000,
    (StreamSegment(2 << 32 | 5, KeyRange(0.0, 1 / 3)), StreamSegment(2 << 32 | 6, KeyRange(1 / 3, 1.0))),
    (StreamSegment(1 << 32 | 7, KeyRange(0.0, 1.0)),),
    duplicate_of=0,
)
SECOND_EPOCH = 1 << 32


class TestEpoch(GoldenRecords):
    shapes = {
        "epoch": (
            SCALED,
            epoch_body,
            decode_epoch,
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
        )
    }


def test_key():
    assert epoch_key("s", "t", 7) == Key("stream/s/t", "epoch/0000000007")


def test_a_duplicate_epoch_names_what_it_repeats():
    body = epoch_body(DUPLICATE)
    assert body["duplicate_of"] == 0
    assert decode_epoch(json.loads(json.dumps(body))) == DUPLICATE


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
    text = json.dumps(epoch_body(epoch))
    assert decode_epoch(json.loads(text)) == epoch
