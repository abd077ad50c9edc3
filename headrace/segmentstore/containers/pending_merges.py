"""Merges that tier 2 does not have yet: what each of them brings, and what is left of a segment without them.

Tier 2 takes a merge as a whole or not at all. Bytes that are only in memory enter the target's directory in one run.
What has reached tier 2 under the source's name already is completed there first, and then moved; until then the source
goes on as a segment of tier 2 alone, without a place among the container's segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.codec.container_snapshots import DirectoryPlace, MergedRange

if TYPE_CHECKING:
    from headrace.segmentstore.containers.segment import Segment


class AttributeUndo(NamedTuple):
    """What an attribute was before; NO_VALUE if it was not there."""

    key: int
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class PendingMerge:
    """`length` bytes at `offset` of a segment that came from `source`. The log from `ledger_entry` on tells of it.

    `ordering` is its place in time, `undo` what the attributes that it changed were before, and `event_count` how many
    events it brought.
    """

    offset: int
    length: int
    source: Segment
    ordering: int
    ledger_entry: int
    undo: tuple[AttributeUndo, ...] = ()
    event_count: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def is_in_memory(self) -> bool:
        """Whether no byte of it has reached tier 2 under another name than the target's."""
        return not self.source.storage_length and all(inner.is_in_memory for inner in self.source.merges)

    @property
    def is_complete(self) -> bool:
        """Whether tier 2 has all of it, under whatever names."""
        return self.source.tiered_end == self.source.length

    def enters_directly(self, object_bytes_max: int) -> bool:
        """Whether it goes to tier 2 in one run of the target.

        If it is larger than an object should be, then only when the source's name may be in use again.
        """
        return self.is_in_memory and (self.length <= object_bytes_max or self.source.name_is_free)

    def oldest_entry(self) -> int:
        """The first log entry without which a recovery could not tell where its bytes came from."""
        return min([self.ledger_entry, *(inner.oldest_entry() for inner in self.source.merges)])

    def sources(self) -> Iterator[Segment]:
        """All segments under whose names tier 2 may have bytes of it."""
        yield self.source
        for inner in self.source.merges:
            yield from inner.sources()

    def merged_range(self) -> MergedRange:
        """What a restoration needs to know to complete it."""
        inner = tuple(each.merged_range() for each in self.source.merges)
        return MergedRange(self.offset, self.length, DirectoryPlace(self.source.name, 0), self.ordering, inner)


class FlushPlace(NamedTuple):
    """What goes to tier 2 next of a segment: under the name of `segment`, which is itself or one that it came from.

    Bytes of `segment` are found in memory `shift` bytes further, up to `end` there.
    """

    segment: Segment
    shift: int
    end: int


def flush_place(segment: Segment, object_bytes_max: int) -> FlushPlace:
    """Where the flush of a segment goes on. Nothing is left there if a move in the directory comes first."""
    place, shift, end = segment, 0, segment.readable_length
    while (merge := _next_merge(place)) is not None:
        if merge.enters_directly(object_bytes_max) or shift + merge.end > segment.readable_length:
            break
        place, shift, end = merge.source, shift + merge.offset, shift + merge.end
    for merge in place.merges:
        if not merge.enters_directly(object_bytes_max):
            end = min(end, shift + merge.offset)
            break
    return FlushPlace(place, shift, end)


class DueMove(NamedTuple):
    """A merge into `target` whose bytes tier 2 has, under the name of its source."""

    target: Segment
    merge: PendingMerge


def due_move(segment: Segment, object_bytes_max: int) -> DueMove | None:
    """The next merge to move in the chunk directory, the innermost first; None if bytes have to be flushed before."""
    due: DueMove | None = None
    target, durable_end = segment, segment.readable_length
    while (merge := _next_merge(target)) is not None:
        if merge.enters_directly(object_bytes_max) or merge.end > durable_end:
            return None
        due = DueMove(target, merge)
        target, durable_end = merge.source, merge.length
    return due if target.storage_length == target.length else None


def _next_merge(segment: Segment) -> PendingMerge | None:
    """The merge whose bytes are the next ones that tier 2 lacks under the segment's name."""
    if segment.merges and segment.merges[0].offset <= segment.storage_length:
        return segment.merges[0]
    return None


def places_of(segment: Segment, offset: int, length: int) -> list[tuple[str, int, int]]:
    """Under which names and at which offsets the directory may have the bytes, and how many of them at most.

    Bytes that came by a merge lie under another name until the storage writer moves them, which may be done before it
    knows: when the answer of the directory was lost, or after a crash.
    """
    inner: list[tuple[str, int, int]] = []
    for merge in segment.merges:
        if merge.offset <= offset < merge.end:
            length = min(length, merge.end - offset)
            inner = places_of(merge.source, offset - merge.offset, length)
            break
    return [*inner, (segment.name, offset, length)]
