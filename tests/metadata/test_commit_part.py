"""The part of a commit set in a stream: golden value and key."""

from __future__ import annotations

import json

from golden_records import GoldenRecords

from headrace.metadata.commit_records import commit_part_body, commit_part_key, decode_commit_part
from headrace.model.commit_sets import SET_TRANSACTIONS_MAX, CommitPart
from headrace.model.transactions import CommitOrder
from headrace.ports.metadata_store import BODY_BYTES_MAX, Key

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"
ONE = "0" * 31 + "1"
FIELDS = {"format": 1, "set": "a1", "home": "h", "writer": "w:1", "members": ONE + TEXT}


class TestCommitPart(GoldenRecords):
    shapes = {
        "commit part": (
            CommitPart("a1", "h", "w:1", (1, ID), CommitOrder(7, 1), lost=True),
            commit_part_body,
            decode_commit_part,
            FIELDS | {"order": 7, "lost": True},
        )
    }


def test_an_undecided_part_has_no_order():
    part = CommitPart("a1", "h", "w:1", (1, ID))
    assert commit_part_body(part) == FIELDS | {"order": None, "lost": False}
    assert decode_commit_part(commit_part_body(part)) == part


def test_the_largest_part_is_one_record():
    part = CommitPart("f" * 32, "h" * 255, "w" * 250, tuple(range(1 << 126, (1 << 126) + SET_TRANSACTIONS_MAX)))
    assert len(json.dumps(commit_part_body(part))) < BODY_BYTES_MAX // 4


def test_key():
    assert commit_part_key("s", "t", "a1") == Key("transactions/s/t", "commit-part/a1")
