"""`headrace transaction`: what is open, what became of it, ending it, and several at once."""

from __future__ import annotations

from typing import Any

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

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
    assert "TRANSACTION" in ok("transaction", "list", stream)
    kept, dropped = begin(), begin()
    assert [one["transaction"] for one in as_json("transaction", "list", stream)["transactions"]] == sorted(
        [kept, dropped]
    )
    assert as_json("transaction", "commit", stream, kept)["state"] in ("COMMITTING", "COMMITTED")
    assert f"transaction {dropped} is abort" in ok("transaction", "abort", stream, dropped)
    shown = as_json("transaction", "get", stream, kept)
    assert shown["state"] in ("COMMITTING", "COMMITTED")
    assert len(shown["segments"]) == 2


def test_several_at_once(stream: str, begin: Any, run: Run, ok: Show, as_json: ReadJson):
    members = [begin(), begin()]
    made = as_json("transaction", "commit-all", stream, "k", *members)
    assert (made["transactions"], made["new"]) == (members, True)
    assert ok("transaction", "commit-all", stream, "k", *members).startswith(
        "2 transactions were committed under k, at"
    )
    assert as_json("transaction", "commit-set", stream, "k")["transactions"] == members
    assert run("transaction", "commit-all", stream, "k", members[0]).code == 4
