"""The mark of a cold segment: one record per segment, deleted when the segment is replaced."""

from __future__ import annotations

from typing import Any, Final

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.model.scaling import ColdMark
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Key, Record, Replace

_PREFIX = "cold/"
COLD_MARKS_FIRST: Final = _PREFIX
COLD_MARKS_LAST: Final = f"{_PREFIX}~"


def cold_mark_sort(identifier: int) -> str:
    return f"{_PREFIX}{identifier:020d}"


def segment_of_cold_mark(sort: str) -> int:
    """The id of the segment that a mark at this sort key is about."""
    return int(sort.removeprefix(_PREFIX))


def cold_mark_key(scope: str, stream: str, identifier: int) -> Key:
    return Key(stream_partition(scope, stream), cold_mark_sort(identifier))


def cold_mark_body(mark: ColdMark) -> dict[str, Any]:
    return versioned(reported=mark.reported_ms, until=mark.until_ms)


def decode_cold_mark(body: Body) -> ColdMark:
    return decoded("cold mark", body, _cold_mark)


def _cold_mark(body: Body) -> ColdMark:
    until = body["until"]
    return ColdMark(int(body["reported"]), None if until is None else int(until))


def read_cold_mark(record: Record) -> ColdMark:
    return decode_cold_mark(record.body)


def write_cold_mark(stream: Stream, identifier: int, mark: ColdMark, version: int | None) -> Create | Replace:
    """The write that replaces the mark of this version, or creates the first mark if `version` is None."""
    key, body = cold_mark_key(stream.scope, stream.name, identifier), cold_mark_body(mark)
    return Create(key, body) if version is None else Replace(key, body, version)
