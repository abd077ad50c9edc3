"""The record of the state of retention: golden values and key."""

from __future__ import annotations

from cut_histories import History
from golden_records import GoldenRecords

from headrace.metadata.retention_records import decode_retention, retention_body, retention_key
from headrace.model.retention import Counting, RetentionCut, RetentionState
from headrace.ports.metadata_store import Key

COUNTED = Counting(History.begin(2).tail(), 3, 4, 5, 6)


class TestRetentionState(GoldenRecords):
    shapes = {
        "retention": (
            RetentionState(7, 5, (RetentionCut(6, 2**40), RetentionCut(7, 2**41))),
            retention_body,
            decode_retention,
            {"format": 1, "due": 7, "head_time": 5, "cuts": [[6, 2**40], [7, 2**41]]},
        )
    }


class TestRetentionWithoutPolicy(GoldenRecords):
    shapes = {
        "retention": (
            RetentionState(None, 5),
            retention_body,
            decode_retention,
            {"format": 1, "due": None, "head_time": 5, "cuts": []},
        )
    }


def test_golden_value_of_a_count():
    state = RetentionState(7, 5, (), COUNTED)
    body = retention_body(state)
    assert body["counting"] == {
        "place": {
            "scope": "s",
            "stream": "t",
            "positions": [[0, 0], [1, 0]],
            "segments": [[0, 0.0, 0.5], [1, 0.5, 1.0]],
        },
        "first_epoch": 3,
        "before_bytes": 4,
        "next_epoch": 5,
        "size_bytes": 6,
    }
    assert decode_retention(body) == state


def test_each_incarnation_has_its_own_key():
    assert retention_key("s", "t", 3) == Key("stream/s/t", "retention/0000000003")
