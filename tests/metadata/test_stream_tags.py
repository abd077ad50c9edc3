"""The record of the long tags of a stream: golden value and key."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.stream_tags import decode_stream_tags, stream_tags_body, stream_tags_key
from headrace.ports.metadata_store import Key


class TestStreamTags(GoldenRecords):
    shapes = {
        "stream tags": (
            ("blue", "\u0142"),
            stream_tags_body,
            decode_stream_tags,
            {"format": 1, "tags": ["blue", "\u0142"]},
        )
    }


def test_key():
    assert stream_tags_key("s", "t", 7, 3) == Key("stream/s/t", "tags/0000000007/0000000003")
