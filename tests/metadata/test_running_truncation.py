"""The record of a running truncation: golden value and key."""

from __future__ import annotations

from dataclasses import replace

from golden_records import FIRST, THIRD, TWO_THIRDS, GoldenRecords

from headrace.metadata.truncation import (
    decode_running_truncation,
    running_truncation_body,
    running_truncation_key,
)
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.truncation import RunningTruncation, Truncation
from headrace.ports.metadata_store import Key

HEAD = PlacedCut(StreamCut.of("s", "t", {5: 10, 6: 0, 7: 2**62}), FIRST.segments)
RUNNING = RunningTruncation(HEAD, 0, Truncation(HEAD, 0, 3), 1, 7, is_recorded=True)
GOLDEN_HEAD = {
    "scope": "s",
    "stream": "t",
    "positions": [[5, 10], [6, 0], [7, 2**62]],
    "segments": [[5, 0.0, THIRD], [6, THIRD, TWO_THIRDS], [7, TWO_THIRDS, 1.0]],
}
GOLDEN = {
    "format": 1,
    "target": GOLDEN_HEAD,
    "first_epoch": 0,
    "before": {"head": GOLDEN_HEAD, "first_epoch": 0, "size_bytes": 3},
    "next_epoch": 1,
    "size_bytes": 7,
    "recorded": True,
}


class TestRunningTruncation(GoldenRecords):
    shapes = {"running truncation": (RUNNING, running_truncation_body, decode_running_truncation, GOLDEN)}


def test_positions_done_are_stored_only_if_there_are_any():
    running = replace(RUNNING, positions_done=2)
    assert running_truncation_body(running) == {**GOLDEN, "positions_done": 2}
    assert decode_running_truncation(running_truncation_body(running)) == running


def test_a_truncation_by_retention_is_marked():
    running = replace(RUNNING, by_retention=True)
    assert running_truncation_body(running) == {**GOLDEN, "by_retention": True}
    assert decode_running_truncation(running_truncation_body(running)) == running


def test_key():
    assert running_truncation_key("s", "t") == Key("stream/s/t", "truncating")
