"""The record of an evicted segment: golden value and key."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.codec.container_snapshots import SegmentSnapshot
from headrace.metadata.evicted_segment import (
    SegmentRecord,
    decode_segment_record,
    evicted_segment_key,
    segment_record_body,
    without_number,
)
from headrace.ports.metadata_store import Key


class TestEvictedSegment(GoldenRecords):
    shapes = {
        "segment": (
            SegmentRecord(SegmentSnapshot(0, "s/t/0.#epoch.0", 3, 2**62, True, 9, {0xAB: -1}), 4),
            segment_record_body,
            decode_segment_record,
            {
                "format": 1,
                "epoch": 4,
                "segment": {
                    "number": 0,
                    "name": "s/t/0.#epoch.0",
                    "start": 3,
                    "length": 2**62,
                    "sealed": True,
                    "modified": 9,
                    "attributes": {"ab": -1},
                },
            },
        )
    }


def test_key():
    assert evicted_segment_key("s/t/0.#epoch.0") == Key("chunks/s/t/0.#epoch.0", "segment")


def test_a_record_has_no_segment_number():
    state = SegmentSnapshot(7, "s", 0, 0, False, 0, {})
    assert without_number(state) == SegmentSnapshot(0, "s", 0, 0, False, 0, {})
