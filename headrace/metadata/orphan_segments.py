"""Segments that may become orphans: those about to be created, and those of scales that were rolled back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.metadata.due_index import IndexPage, bucket_of, read_index
from headrace.metadata.record_layout import decoded, stream_partition, time_prefix, versioned
from headrace.model.errors import CorruptError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.segments import segment_epoch, segment_id, segment_number
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Replace

# Segments that a process is about to create, and when a tick checks them: an index per bucket, sorted by that time.

SEGMENTS_PER_CREATION_MAX = 2 * SEGMENTS_PER_STREAM_MAX
"""A commit of transactions of an older epoch creates the segments of two epochs at once."""


@dataclass(frozen=True, slots=True)
class Creation:
    """`segments` are ids, of the incarnation of the stream that begins at `first_segment_number`; at least one."""

    scope: str
    stream: str
    first_segment_number: int
    segments: tuple[int, ...]


def creations_partition(bucket: int) -> str:
    return f"creations/{bucket:04d}"


def creation_sort(creation: Creation, due_ms: int) -> str:
    """The same segments at the same time are one entry."""
    place = f"{creation.first_segment_number:010d}/{segment_epoch(creation.segments[0]):010d}"
    return f"{time_prefix(due_ms)}/{creation.scope}/{creation.stream}/{place}"


def creations_last(now_ms: int) -> str:
    """The upper bound of a query for what is due at `now_ms`."""
    return time_prefix(now_ms + 1)


def creation_key(creation: Creation, due_ms: int) -> Key:
    return Key(creations_partition(bucket_of(creation.scope, creation.stream)), creation_sort(creation, due_ms))


def creation_body(creation: Creation) -> dict[str, Any]:
    """The segments as ranges: epoch, first and last number."""
    return versioned(
        scope=creation.scope,
        stream=creation.stream,
        first_number=creation.first_segment_number,
        segments=[list(span) for span in _ranges(creation.segments)],
    )


def decode_creation(body: Body) -> Creation:
    return decoded("creation", body, _creation)


def _creation(body: Body) -> Creation:
    ranges = [(int(epoch), int(first), int(last)) for epoch, first, last in body["segments"]]
    _check_ranges(ranges)
    identifiers = tuple(segment_id(epoch, number) for epoch, first, last in ranges for number in range(first, last + 1))
    return Creation(str(body["scope"]), str(body["stream"]), int(body["first_number"]), identifiers)


def _check_ranges(ranges: Sequence[tuple[int, int, int]]) -> None:
    """Refuse ranges of a corrupt record before memory is taken for the segments in them.

    Raises:
        CorruptError: a range is empty, or there are no segments or too many.
    """
    if any(last < first for _, first, last in ranges):
        raise CorruptError("a range of segment numbers ends before it begins")
    count = sum(last - first + 1 for _, first, last in ranges)
    if not 1 <= count <= SEGMENTS_PER_CREATION_MAX:
        raise CorruptError(f"it names {count} segments, not 1 to {SEGMENTS_PER_CREATION_MAX}")


def _ranges(identifiers: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    ordered = sorted(identifiers)
    first = last = ordered[0]
    for each in ordered[1:]:
        if each != last + 1:
            yield segment_epoch(first), segment_number(first), segment_number(last)
            first = each
        last = each
    yield segment_epoch(first), segment_number(first), segment_number(last)


def read_due_creations(store: MetadataStore, bucket: int, now_ms: int, after: str, limit: int) -> IndexPage[Creation]:
    """The notes of a bucket that are due at `now_ms`; one query."""
    partition, last = creations_partition(bucket), creations_last(now_ms)
    return read_index(store, partition, decode_creation, after=after, last=last, limit=limit)


def create_creation(creation: Creation, due_ms: int) -> Create:
    return Create(creation_key(creation, due_ms), creation_body(creation))


# Ids of segments that rolled-back scales of a stream may have created: they are empty and part of no epoch.

LEFTOVERS_SORT: Final = "leftovers"


def leftovers_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), LEFTOVERS_SORT)


def leftovers_body(identifiers: Iterable[int]) -> dict[str, Any]:
    return versioned(segments=sorted(identifiers))


def decode_leftovers(body: Body) -> tuple[int, ...]:
    return decoded("leftovers", body, lambda fields: tuple(int(field) for field in fields["segments"]))


@dataclass(frozen=True, slots=True)
class StoredLeftovers:
    """Ids of leftover segments as they were read, and the version of their record."""

    identifiers: tuple[int, ...]
    version: int


def find_leftovers(store: MetadataStore, stream: Stream) -> StoredLeftovers | None:
    """One read."""
    record = store.get(leftovers_key(stream.scope, stream.name))
    return StoredLeftovers(decode_leftovers(record.body), record.version) if record else None


def write_leftovers(stream: Stream, identifiers: Iterable[int], version: int | None) -> Create | Replace:
    """The write that replaces the record of this version, or creates it if `version` is None."""
    key, body = leftovers_key(stream.scope, stream.name), leftovers_body(identifiers)
    return Create(key, body) if version is None else Replace(key, body, version)


def delete_leftovers_record(stream: Stream, version: int) -> Delete:
    return Delete(leftovers_key(stream.scope, stream.name), version)
