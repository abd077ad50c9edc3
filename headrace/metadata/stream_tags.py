"""The tags of a stream that are too long for its current record, which names them: written once, never changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.ports.metadata_store import Body, Key

TAGS_IN_CURRENT_BYTES_MAX = 256
"""Tags that take so many bytes as JSON are part of the current record: with them it stays below the KiB of a write
unit, and a process that has just started saves a read."""

_PREFIX = "tags/"


@dataclass(frozen=True, slots=True)
class TagsReference:
    """Which record has the tags: that of the configuration version with which they came.

    `first_segment_number` is that of the incarnation, in which each version is given once.
    """

    scope: str
    stream: str
    first_segment_number: int
    version: int


def fit_in_current(tags: Sequence[str]) -> bool:
    return len(json.dumps(list(tags), separators=(",", ":"))) <= TAGS_IN_CURRENT_BYTES_MAX


def stream_tags_sort(first_segment_number: int, version: int) -> str:
    return f"{_PREFIX}{first_segment_number:010d}/{version:010d}"


def stream_tags_key(scope: str, stream: str, first_segment_number: int, version: int) -> Key:
    return Key(stream_partition(scope, stream), stream_tags_sort(first_segment_number, version))


def stream_tags_body(tags: Sequence[str]) -> dict[str, Any]:
    return versioned(tags=list(tags))


def decode_stream_tags(body: Body) -> tuple[str, ...]:
    return decoded("stream tags", body, lambda fields: tuple(str(tag) for tag in fields["tags"]))
