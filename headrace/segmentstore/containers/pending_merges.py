"""Merges that tier 2 does not have yet.

Tier 2 gets a merge as a whole or not at all. Bytes that are only in memory enter the target's directory in one run. If
tier 2 has a part under the source's name, the rest is flushed under that name first, and then all runs are moved. Until
then the source exists in tier 2, but not among the container's segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.codec.container_snapshots import DirectoryPlace, MergedRange
from headrace.model.names import is_transient_segment_name

if TYPE_CHECKING:
    from headrace.segmentstore.containers.segment import Segment


class AttributeUndo(NamedTuple):
    """The value of an attribute before the merge; NO_VALUE if it was not set."""

    key: int
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class PendingMerge:
    """`length` bytes at `offset` of a segment that came from `source`, by an operation in log entry `ledger_entry`.

    `ordering` is the number of the operation's frame. `undo` has the values of the changed attributes before the merge,
    and `event_count` the number of merged events.
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
        """Whether tier 2 has no byte of it under the name of a source."""
        return not self.source.tiered.length and all(inner.is_in_memory for inner in self.source.merges)

    @property
    def is_complete(self) -> bool:
        """Whether tier 2 has all of it, under any names."""
        return self.source.tiered_end == self.source.accepted.length

    def enters_directly(self, object_bytes_max: int) -> bool:
        """Whether it is flushed in one run of the target.

        A merge that is larger than an object should be is flushed under its source's name, unless that name is free
        for a new segment.
        """
        return self.is_in_memory and (self.length <= object_bytes_max or self.source.name_is_free)

    def oldest_entry(self) -> int:
        """The first log entry that a recovery needs in order to find the sources of its bytes."""
        return min([self.ledger_entry, *(inner.oldest_entry() for inner in self.source.merges)])

    def sources(self) -> Iterator[Segment]:
        """The segments under whose names tier 2 may have bytes of it."""
        yield self.source
        for inner in self.source.merges:
            yield from inner.sources()

    def merged_range(self) -> MergedRange:
        """The description with which a restoration can complete the merge."""
        inner = tuple(each.merged_range() for each in self.source.merges)
        return MergedRange(self.offset, self.length, DirectoryPlace(self.source.name, 0), self.ordering, inner)


class FlushPlace(NamedTuple):
    """The bytes of a segment to flush next, under the name of `segment`: that segment or a source of its merges.

    In memory the bytes of `segment` are `shift` bytes further, and end at `end`.
    """

    segment: Segment
    shift: int
    end: int


def none_waits(_merge: PendingMerge) -> bool:
    return False


def flush_place(
    segment: Segment, object_bytes_max: int, waits: Callable[[PendingMerge], bool] = none_waits
) -> FlushPlace:
    """Where the flush of a segment continues. The place is empty if runs must be moved in the directory first.

    It ends before the first merge that `waits`.
    """
    place, shift, end = segment, 0, segment.durable.length
    while (merge := _next_merge(place)) is not None:
        if merge.enters_directly(object_bytes_max) or shift + merge.end > segment.durable.length:
            break
        place, shift, end = merge.source, shift + merge.offset, shift + merge.end
    for merge in place.merges:
        if not merge.enters_directly(object_bytes_max) or waits(merge):
            end = min(end, shift + merge.offset)
            break
    return FlushPlace(place, shift, end)


class DueMove(NamedTuple):
    """A merge into `target` whose bytes tier 2 has under the name of the source."""

    target: Segment
    merge: PendingMerge


def due_move(segment: Segment, object_bytes_max: int) -> DueMove | None:
    """The next merge to move in the chunk directory, the innermost first; None if bytes must be flushed first."""
    due: DueMove | None = None
    target, durable_end = segment, segment.durable.length
    while (merge := _next_merge(target)) is not None:
        if merge.enters_directly(object_bytes_max) or merge.end > durable_end:
            return None
        due = DueMove(target, merge)
        target, durable_end = merge.source, merge.length
    return due if target.tiered.length == target.accepted.length else None


def _next_merge(segment: Segment) -> PendingMerge | None:
    """The merge with the next bytes that tier 2 lacks under the segment's name; None if these are no merged bytes."""
    if segment.merges and segment.merges[0].offset <= segment.tiered.length:
        return segment.merges[0]
    return None


def places_of(segment: Segment, offset: int, length: int) -> list[tuple[Segment, int, int]]:
    """The segments and offsets under whose names the directory may have the bytes, and the maximum length at each.

    Merged bytes are under the name of their source until the storage writer moves them. A move may be done without its
    knowledge, if the reply of the directory was lost or after a crash.
    """
    inner: list[tuple[Segment, int, int]] = []
    for merge in segment.merges:
        if merge.offset <= offset < merge.end:
            length = min(length, merge.end - offset)
            inner = places_of(merge.source, offset - merge.offset, length)
            break
    return [*inner, (segment, offset, length)]


def end_of_large_event(merges: Iterable[PendingMerge], offset: int) -> int | None:
    """Where the large event ends in which `offset` is, not at its start; None if there is none among these merges."""
    for merge in merges:
        if merge.offset <= offset < merge.end:
            if is_transient_segment_name(merge.source.name):
                return merge.end if offset > merge.offset else None
            end = end_of_large_event(merge.source.merges, offset - merge.offset)
            return None if end is None else merge.offset + end
    return None
