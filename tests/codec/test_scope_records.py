"""Scopes and the listings of what is in them as they are stored."""

from __future__ import annotations

from golden_records import GoldenRecords, Shape

from headrace.codec.records import (
    listing_record,
    scope_record,
)
from headrace.codec.records.scope_record import ScopeState

SHAPES: dict[str, Shape] = {
    "scope": (
        ScopeState.DELETING,
        scope_record.guard_body,
        scope_record.guard_of_body,
        {"format": 1, "state": "DELETING"},
    ),
    "listing": (
        ("a", "b"),
        listing_record.listing_body,
        listing_record.tags_of_body,
        {"format": 1, "tags": ["a", "b"]},
    ),
}


class TestScopeRecords(GoldenRecords):
    shapes = SHAPES


def test_keys_are_where_they_always_were():
    assert (scope_record.guard_partition("s"), scope_record.GUARD_SORT) == ("scope-guard/s", "guard")
    assert [scope_record.door_sort(one) for one in (0, 15)] == ["door/00", "door/15"]
    assert scope_record.scope_entry_body() == {"format": 1}
    assert scope_record.SCOPES_PARTITION == "scopes"
    assert listing_record.listing_partition("s") == "scope/s"
    assert listing_record.tag_partition("s", "a/b") == "tag/s/a/b"
    assert listing_record.tag_body() == {"format": 1}
