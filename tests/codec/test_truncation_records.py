"""Truncations as they are stored, done and under way."""

from __future__ import annotations

from golden_records import FIRST, THIRD, TWO_THIRDS, GoldenRecords, Shape

from headrace.codec.records import (
    truncation_record,
)
from headrace.model.stream_cut_order import PlacedCut
from headrace.model.stream_cuts import StreamCut
from headrace.model.truncation import RunningTruncation, Truncation

HEAD = PlacedCut(StreamCut.of("s", "t", {5: 10, 6: 0, 7: 2**62}), FIRST.segments)
TRUNCATION = Truncation(HEAD, 0, 2**62 + 10)
RUNNING = RunningTruncation(HEAD, 0, Truncation(HEAD, 0, 3), 1, 7, is_recorded=True)
GOLDEN_HEAD = {
    "scope": "s",
    "stream": "t",
    "positions": [[5, 10], [6, 0], [7, 2**62]],
    "segments": [[5, 0.0, THIRD], [6, THIRD, TWO_THIRDS], [7, TWO_THIRDS, 1.0]],
}


SHAPES: dict[str, Shape] = {
    "truncation": (
        TRUNCATION,
        truncation_record.truncation_body,
        truncation_record.truncation_of_body,
        {"format": 1, "head": GOLDEN_HEAD, "first_epoch": 0, "size_bytes": 2**62 + 10},
    ),
    "running truncation": (
        RUNNING,
        truncation_record.running_truncation_body,
        truncation_record.running_truncation_of_body,
        {
            "format": 1,
            "target": GOLDEN_HEAD,
            "first_epoch": 0,
            "before": {"head": GOLDEN_HEAD, "first_epoch": 0, "size_bytes": 3},
            "next_epoch": 1,
            "size_bytes": 7,
            "recorded": True,
        },
    ),
}


class TestTruncationRecords(GoldenRecords):
    shapes = SHAPES


def test_keys_are_where_they_always_were():
    assert truncation_record.TRUNCATION_SORT == "truncation"
    assert truncation_record.RUNNING_TRUNCATION_SORT == "truncating"
