"""Sizes of sealed segments, and the epoch that replaced each: one record per block of segment numbers and epochs.

Numbers alone would not do: a rolling commit makes segments with new epochs and old numbers. A record only ever gains
entries, and an entry never changes. A stream that is sealed as a whole has segments that no epoch replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.segments import segment_epoch, segment_number

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


def sealed_segments_body(sealed: Mapping[int, SealedSegment]) -> dict[str, Any]:
    return versioned(
        segments={str(identifier): [sealed[identifier].length, sealed[identifier].replaced_in] for identifier in sealed}
    )


def sealed_segments_of_body(body: Body) -> dict[int, SealedSegment]:
    return decoded("sealed segments", body, _sealed_segments)


def _sealed_segments(body: Body) -> dict[int, SealedSegment]:
    return {
        int(identifier): SealedSegment(int(length), None if replaced_in is None else int(replaced_in))
        for identifier, (length, replaced_in) in body["segments"].items()
    }
