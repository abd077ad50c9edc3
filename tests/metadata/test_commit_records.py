"""The record of a running commit: golden values and key."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_records import GoldenRecords

from headrace.metadata.commit_records import (
    commit_run_body,
    commit_run_key,
    commit_writer_body,
    commit_writer_key,
    decode_commit_run,
    decode_commit_writer,
)
from headrace.model.commit_sets import EPOCH_MAX, CommitRun, CommitWriter, PendingSet, RunSet, WaitingMark
from headrace.model.errors import InvalidRequestError
from headrace.model.transactions import CommitOrder
from headrace.ports.metadata_store import Key

ID = (3 << 96) | 0xAB
TEXT = "000000030000000000000000000000ab"
GOLDEN = {
    "format": 1,
    "transactions": [TEXT, "0" * 31 + "1"],
    "reference_epoch": 3,
    "active_epoch": 5,
    "rolls": True,
    "started": 99,
}


class TestCommitRun(GoldenRecords):
    shapes = {"commit run": (CommitRun((ID, 1), 3, 5, True, 99), commit_run_body, decode_commit_run, GOLDEN)}


def test_a_run_names_the_transactions_that_it_aborts():
    run = CommitRun((ID, 1), 3, 5, True, 99, incomplete=(1,))
    assert commit_run_body(run) == GOLDEN | {"incomplete": ["0" * 31 + "1"]}
    assert decode_commit_run(commit_run_body(run)) == run


def test_a_run_tells_what_is_left_of_its_commit_sets():
    whole = WaitingMark(1, 8, CommitOrder(4, 1), "a1")
    begun = WaitingMark(2, 9, CommitOrder(5, 1), "b2", passed=100, version=1)
    rest = WaitingMark(ID, 9, CommitOrder(5, 1), "b2", passed=200, version=2)
    run = CommitRun((ID, 1), 3, 5, True, 99, sets=(RunSet(whole, None), RunSet(begun, rest)))
    first, second = ("0" * 31 + digit for digit in "12")
    fields = [
        {"set": "a1", "first": first, "marked": 8, "order": [4, first, 0], "rest": None},
        {
            "set": "b2",
            "first": second,
            "marked": 9,
            "order": [5, first, 0],
            "rest": [200, TEXT],
            "passed": 100,
            "version": 1,
        },
    ]
    assert commit_run_body(run) == GOLDEN | {"sets": fields}
    assert decode_commit_run(commit_run_body(run)) == run


def test_key():
    assert commit_run_key("s", "t") == Key("transactions/s/t", "run")


PENDING_SET = PendingSet("b2", EPOCH_MAX, ("t", "u"), refused=True)
COMMITTED = CommitWriter("w:1", EPOCH_MAX - 1, "a1", 99, PENDING_SET)
PENDING = {"set": "b2", "epoch": EPOCH_MAX, "streams": ["t", "u"], "refused": True}
COMMIT_WRITER_GOLDEN = {
    "format": 1,
    "writer": "w:1",
    "epoch": EPOCH_MAX - 1,
    "set": "a1",
    "time": 99,
    "pending": PENDING,
}


NOTED = replace(COMMITTED, note="at 7", pending=replace(PENDING_SET, note=""))
NOTED_GOLDEN = COMMIT_WRITER_GOLDEN | {"note": "at 7", "pending": PENDING | {"note": ""}}


class TestCommitWriter(GoldenRecords):
    shapes = {"commit writer": (COMMITTED, commit_writer_body, decode_commit_writer, COMMIT_WRITER_GOLDEN)}


class TestCommitWriterWithNotes(GoldenRecords):
    shapes = {"commit writer": (NOTED, commit_writer_body, decode_commit_writer, NOTED_GOLDEN)}
    left_out = {"commit writer": {"note"}}


def test_a_writer_without_a_set():
    body = commit_writer_body(CommitWriter("w:1"))
    assert body == {"format": 1, "writer": "w:1", "epoch": None, "set": None, "time": None, "pending": None}
    assert decode_commit_writer(body) == CommitWriter("w:1")


def test_key_of_commit_writer():
    assert commit_writer_key("s", "t", "spark:1-2") == Key("transactions/s/t", "commit-writer/spark:1-2")
    with pytest.raises(InvalidRequestError):
        commit_writer_key("s", "t", "a/b")
