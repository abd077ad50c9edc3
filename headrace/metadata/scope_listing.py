"""Entries in the lists of what is in a scope: its streams with their tags, its reader groups and its tables.

Each list is a partition of its own, and its sort keys are the names.
"""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, versioned
from headrace.model.names import check_known_name
from headrace.ports.metadata_store import Body, Key, Record


def listing_partition(scope: str) -> str:
    """The list of a scope's streams."""
    return f"scope/{check_known_name('scope', scope)}"


def listing_key(scope: str, stream: str) -> Key:
    return Key(listing_partition(scope), check_known_name("stream", stream))


def reader_groups_partition(scope: str) -> str:
    """The list of a scope's reader groups."""
    return f"scope-reader-groups/{check_known_name('scope', scope)}"


def reader_group_listing_key(scope: str, group: str) -> Key:
    return Key(reader_groups_partition(scope), check_known_name("reader group", group))


def tables_partition(scope: str) -> str:
    """The list of a scope's key-value tables."""
    return f"scope-key-value-tables/{check_known_name('scope', scope)}"


def table_listing_key(scope: str, table: str) -> Key:
    return Key(tables_partition(scope), check_known_name("key-value table", table))


def listing_body(tags: tuple[str, ...]) -> dict[str, Any]:
    return versioned(tags=list(tags))


def decode_listed_tags(body: Body) -> tuple[str, ...]:
    return decoded("listing", body, lambda fields: tuple(str(tag) for tag in fields["tags"]))


def name_body() -> dict[str, Any]:
    """The body of an entry that says nothing but its name."""
    return versioned()


def listed_tags(record: Record) -> tuple[str, ...]:
    """The tags of a stream, from its entry in the list."""
    return decode_listed_tags(record.body)
