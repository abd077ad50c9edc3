"""`headrace transaction`: what is open, what became of it, ending it, and several at once."""

from __future__ import annotations

from typing import Any

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Show

from headrace.client import connect

UNKNOWN = "0" * 32


@pytest.fixture
def begin(api: ApiInMemory, stream: str) -> Any:
    """Begins a transaction on s/t; its id."""

    def begin() -> str:
        with connect("http://controller", transport=api.transport()) as client:
            return client.admin.transactions.create("s", "t").transaction

    return begin


def test_open_and_completed_ones(stream: str, begin: Any, ok: Show, as_json: ReadJson):
    assert ok("transaction", "list", stream) == "none\n"
    kept, dropped = begin(), begin()
    assert [
        transaction["transaction"] for transaction in as_json("transaction", "list", stream)["transactions"]
    ] == sorted([kept, dropped])
    assert as_json("transaction", "commit", stream, kept)["state"] in ("COMMITTING", "COMMITTED")
    assert f"transaction {dropped} is abort" in ok("transaction", "abort", stream, dropped)
    shown = as_json("transaction", "get", stream, kept)
    assert shown["state"] in ("COMMITTING", "COMMITTED")
    assert len(shown["segments"]) == 2


def test_several_at_once(stream: str, begin: Any, ok: Show, as_json: ReadJson):
    members = [begin(), begin()]
    commit = ("transaction", "commit-all", stream, *members, "--writer", "job-7", "--epoch", "42")
    assert "no epoch of job-7" in ok("transaction", "committed-epoch", stream, "job-7")
    made = as_json(*commit)
    assert (made["writer"], made["epoch"], made["new"]) == ("job-7", 42, True)
    assert ok(*commit).startswith("epoch 42 of job-7 was committed at")
    assert as_json("transaction", "committed-epoch", stream, "job-7") == {"writer": "job-7", "epoch": 42}
    assert "epoch 42" in ok("transaction", "committed-epoch", stream, "job-7")


def test_labels(api: ApiInMemory, stream: str, ok: Show, as_json: ReadJson):
    with connect("http://controller", transport=api.transport()) as client:
        made = {label: client.admin.transactions.create("s", "t", label=label).transaction for label in ("q/7", "r")}
    listed = as_json("transaction", "list", stream, "--label-prefix", "q/")["transactions"]
    assert [(transaction["transaction"], transaction["label"]) for transaction in listed] == [(made["q/7"], "q/7")]
    assert "q/7" in ok("transaction", "list", stream)
    assert "1 transactions are aborted" in ok("transaction", "abort-labelled", stream, "q/")
    left = as_json("transaction", "list", stream)["transactions"]
    assert {transaction["transaction"] for transaction in left if transaction["state"] == "OPEN"} == {made["r"]}
