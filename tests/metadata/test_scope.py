"""The records of a scope: golden values and keys."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.scope import (
    ScopeState,
    closing_guard_body,
    creation_lock_key,
    creation_lock_keys,
    decode_closing_request,
    decode_guard,
    guard_body,
    scope_entry_body,
    scope_entry_key,
    scope_guard_key,
)
from headrace.ports.metadata_store import Key


class TestScope(GoldenRecords):
    shapes = {"scope": (ScopeState.DELETING, guard_body, decode_guard, {"format": 1, "state": "DELETING"})}


def test_keys():
    assert scope_guard_key("s") == Key("scope-guard/s", "guard")
    locks = creation_lock_keys("s")
    assert len(locks) == 16
    assert (locks[0], locks[15]) == (Key("scope-guard/s", "door/00"), Key("scope-guard/s", "door/15"))
    assert creation_lock_key("s", "t") == locks[0]
    assert scope_entry_key("s") == Key("scopes", "s")


def test_golden_bodies_of_a_closing_scope_and_an_entry():
    closing = closing_guard_body("delete_scope-7")
    assert closing == {"format": 1, "state": "CLOSING", "request": "delete_scope-7"}
    assert decode_guard(closing) is ScopeState.CLOSING
    assert decode_closing_request(closing) == "delete_scope-7"
    assert decode_closing_request(guard_body(ScopeState.OPEN)) is None
    assert scope_entry_body() == {"format": 1}
