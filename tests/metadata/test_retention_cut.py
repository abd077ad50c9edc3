"""The record of a cut of a retention set: golden value and key."""

from __future__ import annotations

from cut_histories import History, histories
from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.retention_records import decode_retention_cut, retention_cut_body, retention_cut_key
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Key

PLACE = History.begin(2).tail()
PLACE_BODY = {
    "scope": "s",
    "stream": "t",
    "positions": [[0, 0], [1, 0]],
    "segments": [[0, 0.0, 0.5], [1, 0.5, 1.0]],
}


class TestRetentionCut(GoldenRecords):
    shapes = {
        "retention cut": (
            Truncation(PLACE, 3, 2**40),
            retention_cut_body,
            decode_retention_cut,
            {"format": 1, "cut": PLACE_BODY, "first_epoch": 3, "size_bytes": 2**40},
        )
    }


def test_each_incarnation_has_its_own_key():
    key = retention_cut_key("s", "t", 3, 5)
    assert key == Key("stream/s/t", "retention-cut/0000000003/00000000000000000005")
    assert retention_cut_key("s", "t", 4, 5) != key


@given(histories(steps_max=8), st.integers(0, 2**62))
def test_cuts_come_back(history: History, size: int):
    place = Truncation(history.tail(), len(history.epochs) - 1, size)
    assert decode_retention_cut(retention_cut_body(place)) == place
