"""`headrace table`: tables, JSON, exit codes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

FIELDS = {
    "scope", "table", "state", "partitions", "primaryKeyLength", "secondaryKeyLength", "rolloverSizeBytes",
    "creationTimeMs",
}  # fmt: skip


@pytest.fixture
def table(ok: Any) -> str:
    """The table s/kv of two segments."""
    ok("scope", "create", "s")
    ok("table", "create", "s/kv", "--partitions", "2", "--primary-key-length", "8")
    return "s/kv"


def test_the_life_of_a_table(table: str, ok: Any, as_json: Any, run: Any):
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


def test_segments_of_a_table(table: str, api: Any, ok: Any, as_json: Any):
    found = as_json("table", "segments", table)
    assert (found["primaryKeyLength"], found["secondaryKeyLength"]) == (8, 0)
    assert [(one["low"], one["high"]) for one in found["segments"]] == [(0.0, 0.5), (0.5, 1.0)]
    assert ok("table", "segments", table).splitlines()[0].split() == ["SEGMENT", "LOW", "HIGH", "NAME"]
    api.claim_containers("store.test", 4711)
    assert as_json("table", "endpoint", table, "0")["port"] == 4711
    assert "store.test" in ok("table", "endpoint", table, "1")


REFUSED = [
    (("table", "get", "s/none"), 3),
    (("table", "list", "none"), 3),
    (("table", "segments", "s/none"), 3),
    (("table", "delete", "s/none"), 3),
    (("table", "create", "s/kv", "--primary-key-length", "8"), 4),
    (("table", "create", "none/kv", "--primary-key-length", "8"), 3),
    (("table", "create", "s/b", "--primary-key-length", "800000"), 1),
]


@pytest.mark.parametrize(("arguments", "code"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_what_is_refused(table: str, api: Any, run: Any, arguments: tuple[str, ...], code: int):
    before = api.contents()
    ran = run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1
    assert api.contents() == before


USAGE = [
    ("table",),
    ("table", "create", "s/b"),
    ("table", "create", "s/b", "--primary-key-length", "0"),
    ("table", "create", "s/b", "--primary-key-length", "8", "--partitions", "none"),
    ("table", "get", "kv"),
    ("table", "endpoint", "s/kv"),
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_a_command_line_that_makes_no_sense(run: Any, arguments: tuple[str, ...]):
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "usage: headrace" in ran.err
