"""The index of a tag: the streams of a scope that may have the tag, by name."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import versioned
from headrace.model.names import check_known_name
from headrace.ports.metadata_store import Key


def tag_partition(scope: str, tag: str) -> str:
    """A scope's name has no slash, so any tag may follow."""
    return f"tag/{check_known_name('scope', scope)}/{tag}"


def tag_key(scope: str, stream: str, tag: str) -> Key:
    return Key(tag_partition(scope, tag), check_known_name("stream", stream))


def tag_body() -> dict[str, Any]:
    return versioned()
