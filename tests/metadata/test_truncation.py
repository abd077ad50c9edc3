"""The record of a stream's head: golden value and key."""

from __future__ import annotations

from golden_records import FIRST, THIRD, TWO_THIRDS, GoldenRecords

from headrace.metadata.truncation import decode_truncation, truncation_body, truncation_key
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Key

HEAD = PlacedCut(StreamCut.of("s", "t", {5: 10, 6: 0, 7: 2**62}), FIRST.segments)
GOLDEN_HEAD = {
    "scope": "s",
    "stream": "t",
    "positions": [[5, 10], [6, 0], [7, 2**62]],
    "segments": [[5, 0.0, THIRD], [6, THIRD, TWO_THIRDS], [7, TWO_THIRDS, 1.0]],
}


class TestTruncation(GoldenRecords):
    shapes = {
        "truncation": (
            Truncation(HEAD, 0, 2**62 + 10),
            truncation_body,
            decode_truncation,
            {"format": 1, "head": GOLDEN_HEAD, "first_epoch": 0, "size_bytes": 2**62 + 10},
        )
    }


def test_key():
    assert truncation_key("s", "t") == Key("stream/s/t", "truncation")
