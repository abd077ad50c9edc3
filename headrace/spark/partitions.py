"""The batch's ranges into Spark partitions: pieces that every core gets some of, tiny ones together.

A partition is a tuple of ranges that one task reads. How a batch is cut does not change its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.spark.stream_access import PlannedRange

PARTITION_BYTES_MAX_DEFAULT = 128 * 1024 * 1024
PARTITION_BYTES_MIN = 16 * 1024 * 1024
"""A range is not split below this: a task must be worth its start."""

PACKED_BYTES_MIN = 1024 * 1024
"""Ranges are packed into a task up to this size: about what a task costs to start."""

Partition = tuple[PlannedRange, ...]
"""What one task reads, in order."""


def piece_bytes(total_bytes: int, tasks: int | None, bytes_max: int) -> int:
    """How large a piece of a range may be so that `tasks` tasks share the batch evenly; None: unknown."""
    share = -(-total_bytes // (tasks or 1))
    return min(bytes_max, max(PARTITION_BYTES_MIN, share))


def pack_pieces(
    pieces: Iterable[PlannedRange], total_bytes: int, tasks: int | None, piece_bytes: int
) -> list[Partition]:
    """The partitions of a batch. Within one the order is the one given."""
    worth_a_task = max(PACKED_BYTES_MIN, total_bytes // tasks if tasks else 0)
    return list(_packed(pieces, min(worth_a_task, max(1, piece_bytes // 2))))


def _packed(pieces: Iterable[PlannedRange], bytes_min: int) -> Iterator[Partition]:
    """Groups of at least `bytes_min`, but for the last; a piece that has so much itself stays alone."""
    group: list[PlannedRange] = []
    held = 0
    for piece in pieces:
        if piece.length_bytes >= bytes_min:
            yield (piece,)
            continue
        group.append(piece)
        held += piece.length_bytes
        if held >= bytes_min:
            yield tuple(group)
            group, held = [], 0
    if group:
        yield tuple(group)
