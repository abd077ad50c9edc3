"""`headrace table`: tables, JSON and exit codes."""

from __future__ import annotations

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

FIELDS = {
    "scope", "table", "state", "partitions", "primaryKeyLength", "secondaryKeyLength", "rolloverSizeBytes",
    "creationTimeMs",
}  # fmt: skip


@pytest.fixture
def table(ok: Show) -> str:
    """The table s/kv of two segments."""
    ok("scope", "create", "s")
    ok("table", "create", "s/kv", "--partitions", "2", "--primary-key-length", "8")
    return "s/kv"


def test_table_is_created_listed_and_deleted(table: str, ok: Show, as_json: ReadJson, run: Run):
    shown = as_json("table", "get", table)
    assert set(shown) == FIELDS
    assert (shown["state"], shown["partitions"], shown["primaryKeyLength"]) == ("ACTIVE", 2, 8)
    assert as_json("table", "create", table, "--primary-key-length", "4", "--exist-ok") == shown
    made = as_json(
        "table", "create", "s/a", "--primary-key-length", "4", "--secondary-key-length", "2", "--rollover-size-bytes",
        "9",
    )  # fmt: skip
    assert (made["partitions"], made["secondaryKeyLength"], made["rolloverSizeBytes"]) == (1, 2, 9)
    assert ok("table", "list", "s") == "TABLE\ns/a\ns/kv\n"
    assert as_json("table", "list", "s") == {
        "tables": [{"scope": "s", "table": "a"}, {"scope": "s", "table": "kv"}],
    }  # fmt: skip
    assert ok("table", "delete", "s/a") == "table s/a is deleted\n"
    assert as_json("table", "delete", table, "--no-wait") == {"scope": "s", "table": "kv", "deleted": False}
    assert run("table", "get", table).code == 3


def test_segments_of_a_table(table: str, api: ApiInMemory, ok: Show, as_json: ReadJson):
    document = as_json("table", "segments", table)
    assert (document["primaryKeyLength"], document["secondaryKeyLength"]) == (8, 0)
    assert [(segment["low"], segment["high"]) for segment in document["segments"]] == [(0.0, 0.5), (0.5, 1.0)]
    assert ok("table", "segments", table).splitlines()[0] == "SEGMENT  FROM KEY  TO KEY  NAME"
    api.claim_containers("store.test", 4711)
    assert as_json("table", "endpoint", table, "0")["port"] == 4711
    assert "store.test" in ok("table", "endpoint", table, "1")
