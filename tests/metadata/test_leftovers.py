"""The record of leftover segments: golden value and key."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.leftovers import decode_leftovers, leftovers_body, leftovers_key
from headrace.ports.metadata_store import Key


class TestLeftovers(GoldenRecords):
    shapes = {"leftovers": ((7, 8), leftovers_body, decode_leftovers, {"format": 1, "segments": [7, 8]})}


def test_key():
    assert leftovers_key("s", "t") == Key("stream/s/t", "leftovers")
