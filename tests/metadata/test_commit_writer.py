"""The writer of commit sets: golden values and key."""

from __future__ import annotations

import pytest
from golden_records import GoldenRecords

from headrace.metadata.commit_writer import commit_writer_body, commit_writer_key, decode_commit_writer
from headrace.model.commit_sets import EPOCH_MAX, CommitWriter, PendingSet
from headrace.model.errors import InvalidRequestError
from headrace.ports.metadata_store import Key

COMMITTED = CommitWriter("w:1", EPOCH_MAX - 1, "a1", 99, PendingSet("b2", EPOCH_MAX, ("t", "u"), refused=True))
PENDING = {"set": "b2", "epoch": EPOCH_MAX, "streams": ["t", "u"], "refused": True}
GOLDEN = {"format": 1, "writer": "w:1", "epoch": EPOCH_MAX - 1, "set": "a1", "time": 99, "pending": PENDING}


class TestCommitWriter(GoldenRecords):
    shapes = {"commit writer": (COMMITTED, commit_writer_body, decode_commit_writer, GOLDEN)}


def test_a_writer_without_a_set():
    body = commit_writer_body(CommitWriter("w:1"))
    assert body == {"format": 1, "writer": "w:1", "epoch": None, "set": None, "time": None, "pending": None}
    assert decode_commit_writer(body) == CommitWriter("w:1")


def test_key():
    assert commit_writer_key("s", "t", "spark:1-2") == Key("transactions/s/t", "commit-writer/spark:1-2")
    with pytest.raises(InvalidRequestError):
        commit_writer_key("s", "t", "a/b")
