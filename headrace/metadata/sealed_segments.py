"""Sizes of sealed segments, and the epoch that replaced each: one record for a block of segment numbers and epochs.

Numbers alone are not enough: a rolling commit creates segments with new epochs and old numbers. A record only gains
entries. A stream that is sealed as a whole has segments that no epoch replaced. Until the seal has ended, such an entry
may still gain the epoch of a commit that replaces the segment; otherwise an entry never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.model.segments import segment_epoch, segment_number
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Replace

NUMBERS_PER_SHARD = 400
EPOCHS_PER_SHARD = 16
"""Together they keep a record below BODY_BYTES_MAX: an entry takes 54 bytes at most."""

Shard = tuple[int, int]
_PREFIX = "sealed/"


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """Where a segment ended, in bytes; `replaced_in` is the number of an epoch, None at the end of the stream."""

    length: int
    replaced_in: int | None


def shard_of_segment(identifier: int) -> Shard:
    """The block of numbers, and the block of epochs in which segments with these numbers began."""
    return segment_number(identifier) // NUMBERS_PER_SHARD, segment_epoch(identifier) // EPOCHS_PER_SHARD


def sealed_segments_sort(shard: Shard) -> str:
    return f"{_PREFIX}{shard[0]:010d}/{shard[1]:010d}"


def sealed_segments_key(scope: str, stream: str, shard: Shard) -> Key:
    return Key(stream_partition(scope, stream), sealed_segments_sort(shard))


def sealed_segments_body(sealed: Mapping[int, SealedSegment]) -> dict[str, Any]:
    return versioned(
        segments={str(identifier): [sealed[identifier].length, sealed[identifier].replaced_in] for identifier in sealed}
    )


def decode_sealed_segments(body: Body) -> dict[int, SealedSegment]:
    return decoded("sealed segments", body, _sealed_segments)


def extend_sealed_segments(
    store: MetadataStore, stream: Stream, shard: Shard, sealed: Mapping[int, SealedSegment]
) -> Create | Replace | None:
    """The write that adds entries to a shard; None if it has them all. One read.

    Present entries stay as they are, but one without an epoch gains it.
    """
    key = sealed_segments_key(stream.scope, stream.name, shard)
    record = store.get(key)
    if record is None:
        return Create(key, sealed_segments_body(sealed))
    known = decode_sealed_segments(record.body)
    ended = {identifier: one for identifier, one in known.items() if one.replaced_in is not None}
    extended = {**known, **sealed, **ended}
    return None if extended == known else Replace(key, sealed_segments_body(extended), record.version)


def _sealed_segments(body: Body) -> dict[int, SealedSegment]:
    return {
        int(identifier): SealedSegment(int(length), None if replaced_in is None else int(replaced_in))
        for identifier, (length, replaced_in) in body["segments"].items()
    }
