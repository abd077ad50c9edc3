"""The lists of what is in a scope: golden values and keys."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.scope import (
    decode_listed_tags,
    listing_body,
    listing_key,
    name_body,
    reader_group_listing_key,
    table_listing_key,
)
from headrace.ports.metadata_store import Key


class TestScopeListing(GoldenRecords):
    shapes = {
        "listing": (("a", "b"), listing_body, decode_listed_tags, {"format": 1, "tags": ["a", "b"]}),
    }


def test_keys():
    assert listing_key("s", "t") == Key("scope/s", "t")
    assert reader_group_listing_key("s", "g") == Key("scope-reader-groups/s", "g")
    assert table_listing_key("s", "k") == Key("scope-key-value-tables/s", "k")


def test_an_entry_of_a_group_or_table_is_only_a_name():
    assert name_body() == {"format": 1}
