"""Segment ranges into Spark partitions: large ones are split at event boundaries, tiny ones share a task.

A partition is a tuple of ranges that one task reads one after the other. How a batch is cut does not change its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.client.segment_ranges import EventBoundary, SegmentRange, split_range

PARTITION_BYTES_MAX_DEFAULT = 64 * 1024 * 1024
PACKED_BYTES_MIN = 1024 * 1024
"""Ranges are packed into a task up to this size: about what a task costs to start."""


def pack_ranges(
    ranges: Iterable[SegmentRange], bytes_min: int = PACKED_BYTES_MIN
) -> Iterator[tuple[SegmentRange, ...]]:
    """Groups of at least `bytes_min`, but for the last; a range that has so much itself stays alone.

    Within a group the order is the one given.
    """
    group: list[SegmentRange] = []
    held = 0
    for part in ranges:
        if part.length_bytes >= bytes_min:
            yield (part,)
            continue
        group.append(part)
        held += part.length_bytes
        if held >= bytes_min:
            yield tuple(group)
            group, held = [], 0
    if group:
        yield tuple(group)


def partition_ranges(
    ranges: Sequence[SegmentRange], bytes_max: int, event_boundary: EventBoundary
) -> list[tuple[SegmentRange, ...]]:
    """The partitions of a batch: every byte of `ranges` in exactly one of them."""
    pieces = (piece for part in ranges for piece in split_range(part, bytes_max, event_boundary))
    return list(pack_ranges(pieces, min(PACKED_BYTES_MIN, max(1, bytes_max // 2))))
