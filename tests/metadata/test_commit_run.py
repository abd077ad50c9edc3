"""The record of a running commit: golden values and key."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.commit_run import commit_run_body, commit_run_key, decode_commit_run
from headrace.model.transactions import CommitRun
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


def test_key():
    assert commit_run_key("s", "t") == Key("transactions/s/t", "run")
