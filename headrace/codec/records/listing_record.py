"""Entries of the two lists of streams: of a scope, and of a scope's streams with a tag. Both sort by stream name."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned


def listing_partition(scope: str) -> str:
    return f"scope/{scope}"


def listing_body(tags: tuple[str, ...]) -> dict[str, Any]:
    return versioned(tags=list(tags))


def tags_of_body(body: Body) -> tuple[str, ...]:
    return decoded("listing", body, lambda fields: tuple(str(tag) for tag in fields["tags"]))


def tag_partition(scope: str, tag: str) -> str:
    """A scope's name has no slash, so that any tag may follow."""
    return f"tag/{scope}/{tag}"


def tag_body() -> dict[str, Any]:
    return versioned()
