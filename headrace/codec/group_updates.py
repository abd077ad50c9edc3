"""The stored form of the updates of a reader group's state, as Pravega's Java client writes and reads them.

Newer fields are in later revisions of an object, which older readers skip. In the same way `NoteProgress` has a
revision of ours, which Pravega's readers skip: for how long the reader stays online without another update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.codec.group_state import (
    COMPACT_STATE,
    known,
    own_revision,
    positions_bytes,
    range_bytes,
    ranges_bytes,
    read_own_revision,
    read_positions,
    read_range,
    read_ranges,
    read_segment,
    read_state,
    segment_bytes,
    state_bytes,
)
from headrace.codec.serialized_fields import FieldReader, boolean, int64, items, mapping, stored_object, text
from headrace.model.errors import CorruptError
from headrace.model.group_updates import (
    AcquireSegment,
    AddReader,
    BeginCheckpoint,
    ClearCheckpointsBefore,
    CompleteSegment,
    GroupUpdate,
    NoteProgress,
    NotePublished,
    NoteUpdating,
    ReachCheckpoint,
    ReleaseSegment,
    RemoveOutstandingCheckpoints,
    RemoveReader,
    ReplaceState,
)

_LEASE_REVISION = 2


def update_bytes(update: GroupUpdate) -> bytes:
    """The stored form of an update."""
    if isinstance(update, ReplaceState):
        return state_bytes(update.state)
    kind, write = _WRITERS[type(update)]
    return stored_object(write(update), kind=kind)


def parse_update(data: bytes | memoryview) -> GroupUpdate:
    """Raises CorruptError: this is not an update of a reader group's state."""
    kind, revisions = FieldReader(data).typed_object()
    if kind <= COMPACT_STATE:
        return ReplaceState(read_state(kind, revisions))
    read = _READERS.get(kind)
    if read is None:
        raise CorruptError(f"an update of a reader group has the unknown type {kind}: this client may be too old")
    return read(revisions)


def _remove_reader(update: RemoveReader) -> list[bytes]:
    return [text(update.reader) + positions_bytes(update.positions)]


def _release(update: ReleaseSegment) -> list[bytes]:
    return [text(update.reader) + segment_bytes(update.segment) + int64(update.offset)]


def _acquire(update: AcquireSegment) -> list[bytes]:
    return [text(update.reader) + segment_bytes(update.segment)]


def _progress(update: NoteProgress) -> list[bytes]:
    positions = mapping(
        {(segment, update.ranges.get(segment)): offset for segment, offset in update.positions.items()},
        lambda key: segment_bytes(key[0]) + range_bytes(key[1]),
        int64,
    )
    revisions = [text(update.reader) + int64(update.lag_ms), positions]
    return revisions if update.lease_ms is None else [*revisions, own_revision(int64(update.lease_ms))]


def _read_progress(revisions: list[FieldReader]) -> NoteProgress:
    reader, lag_ms = revisions[0].text(), revisions[0].int64()
    if len(revisions) == 1:
        return NoteProgress(reader, lag_ms)
    second = revisions[1]
    found = second.mapping(lambda: (read_segment(second), read_range(second)), second.int64)
    own = read_own_revision(revisions, _LEASE_REVISION)
    return NoteProgress(
        reader,
        lag_ms,
        {segment: offset for (segment, _), offset in found.items()},
        known(dict(found.keys())),
        None if own is None else own.int64(),
    )


def _complete(update: CompleteSegment) -> list[bytes]:
    successors = mapping(update.successors, segment_bytes, lambda before: items(before, int64))
    segments = {update.segment: None, **dict.fromkeys(update.successors)}
    first = text(update.reader) + segment_bytes(update.segment) + successors
    return [first, ranges_bytes(update.ranges, segments)]


def _read_complete(revisions: list[FieldReader]) -> CompleteSegment:
    first = revisions[0]
    reader, segment = first.text(), read_segment(first)
    successors = first.mapping(lambda: read_segment(first), lambda: tuple(first.items(first.int64)))
    return CompleteSegment(reader, segment, successors, read_ranges(revisions[1]) if len(revisions) > 1 else {})


def _reach(update: ReachCheckpoint) -> list[bytes]:
    return [text(update.checkpoint) + text(update.reader) + positions_bytes(update.positions)]


_WRITERS: dict[type[GroupUpdate], tuple[int, Callable[[Any], list[bytes]]]] = {
    AddReader: (2, lambda update: [text(update.reader)]),
    RemoveReader: (3, _remove_reader),
    ReleaseSegment: (4, _release),
    AcquireSegment: (5, _acquire),
    NoteProgress: (6, _progress),
    CompleteSegment: (7, _complete),
    ReachCheckpoint: (8, _reach),
    BeginCheckpoint: (9, lambda update: [text(update.checkpoint)]),
    ClearCheckpointsBefore: (10, lambda update: [text(update.checkpoint)]),
    NotePublished: (11, lambda update: [boolean(update.published)]),
    NoteUpdating: (12, lambda update: [boolean(update.updating)]),
    RemoveOutstandingCheckpoints: (13, lambda update: [b""]),
}
_READERS: dict[int, Callable[[list[FieldReader]], GroupUpdate]] = {
    2: lambda found: AddReader(found[0].text()),
    3: lambda found: RemoveReader(found[0].text(), read_positions(found[0])),
    4: lambda found: ReleaseSegment(found[0].text(), read_segment(found[0]), found[0].int64()),
    5: lambda found: AcquireSegment(found[0].text(), read_segment(found[0])),
    6: _read_progress,
    7: _read_complete,
    8: lambda found: ReachCheckpoint(found[0].text(), found[0].text(), read_positions(found[0])),
    9: lambda found: BeginCheckpoint(found[0].text()),
    10: lambda found: ClearCheckpointsBefore(found[0].text()),
    11: lambda found: NotePublished(found[0].boolean()),
    12: lambda found: NoteUpdating(found[0].boolean()),
    13: lambda found: RemoveOutstandingCheckpoints(),
}
