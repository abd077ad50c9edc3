"""The index of a tag: golden value and key."""

from __future__ import annotations

from headrace.metadata.stream_indexes import tag_body, tag_key
from headrace.ports.metadata_store import Key


def test_golden_value():
    assert tag_key("s", "t", "a/b") == Key("tag/s/a/b", "t")
    assert tag_body() == {"format": 1}
