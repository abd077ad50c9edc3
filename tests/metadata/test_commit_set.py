"""The record of a commit set of release 0.1.0, which this version reads but does not write."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.commit_set import commit_set_key, decode_commit_set
from headrace.model.transactions import CommitSet
from headrace.ports.metadata_store import Key

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"


class TestCommitSet(GoldenRecords):
    shapes = {
        "commit set": (
            CommitSet("k", (ID,), 4),
            lambda _: {"format": 1, "key": "k", "transactions": [TEXT], "marked": 4},
            decode_commit_set,
            {"format": 1, "key": "k", "transactions": [TEXT], "marked": 4},
        )
    }


def test_key():
    assert commit_set_key("s", "t", "k") == Key("transactions/s/t", "commit-set/k")
