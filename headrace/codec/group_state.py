"""The stored form of a reader group's state and of its updates, as Pravega's Java client writes and reads them.

A state is stored in one of two forms: the initial one of a group without readers, and the compact one with everything.
Both have three revisions. The compact one has a fourth of ours, with the leases of readers, which Pravega's readers
skip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.codec.stored_objects import (
    FieldReader,
    blob,
    boolean,
    compact_int,
    compact_long,
    compact_signed_long,
    double,
    int32,
    int64,
    items,
    mapping,
    stored_object,
    text,
    uuid,
)
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.group_state import (
    NO_GROUP_ID,
    Checkpoints,
    GroupState,
    Offsets,
    Positions,
    SharedConfiguration,
    initial_state,
)
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
from headrace.model.names import StreamSegmentName, check_known_name, parse_segment_name, segment_name
from headrace.model.reader_groups import OUTSTANDING_CHECKPOINTS_DEFAULT, RetentionMode
from headrace.model.segments import KeyRange

INITIAL_STATE = 0
COMPACT_STATE = 1
"""The types of the two forms, where a state is stored in the place of an update."""

_CUT_VERSION = 1
_RETENTION_MODES = (RetentionMode.NONE, RetentionMode.MANUAL, RetentionMode.AUTOMATIC)
_NO_RANGE = (-1.0, -1.0)
_LEASE_MAGIC = b"HRls"
"""The first bytes of our own revisions, so that a later revision of Pravega's is not taken for one."""


def state_bytes(state: GroupState) -> bytes:
    """The stored form of a state: the initial one if it has no more than that."""
    if _is_initial(state):
        return stored_object(_initial_revisions(state), kind=INITIAL_STATE)
    return stored_object(_compact_revisions(state), kind=COMPACT_STATE)


def parse_state(data: bytes | memoryview) -> GroupState:
    """Raises CorruptError: this is not the state of a reader group."""
    kind, revisions = FieldReader(data).typed_object()
    return read_state(kind, revisions)


def read_state(kind: int, revisions: list[FieldReader]) -> GroupState:
    """The state of one of the two forms. Raises CorruptError if the type is neither."""
    if kind == INITIAL_STATE:
        return _read_initial(revisions)
    if kind == COMPACT_STATE:
        return _read_compact(revisions)
    raise CorruptError(f"the state of a reader group has type {kind}: expected {INITIAL_STATE} or {COMPACT_STATE}")


def segment_bytes(segment: StreamSegmentName) -> bytes:
    return text(segment_name(segment.scope, segment.stream, segment.segment_id))


def read_segment(reader: FieldReader) -> StreamSegmentName:
    try:
        segment = parse_segment_name(reader.text())
        check_known_name("scope", segment.scope)
        check_known_name("stream", segment.stream)
    except InvalidRequestError as error:
        raise CorruptError(f"the state of a reader group names no segment: {error}") from error
    return segment


def positions_bytes(positions: Positions) -> bytes:
    return mapping(positions, segment_bytes, int64)


def read_positions(reader: FieldReader) -> dict[StreamSegmentName, int]:
    return reader.mapping(lambda: read_segment(reader), reader.int64)


def range_bytes(key_range: KeyRange | None) -> bytes:
    low, high = _NO_RANGE if key_range is None else (key_range.low, key_range.high)
    return double(low) + double(high)


def read_range(reader: FieldReader) -> KeyRange | None:
    """The key range; None if it is not known, or is none."""
    low, high = reader.double(), reader.double()
    return KeyRange(low, high) if 0.0 <= low < high <= 1.0 else None


def ranges_bytes(ranges: Mapping[StreamSegmentName, KeyRange], segments: Mapping[StreamSegmentName, object]) -> bytes:
    """The ranges of these segments, also of those that are not known."""
    return mapping({segment: ranges.get(segment) for segment in segments}, segment_bytes, range_bytes)


def read_ranges(reader: FieldReader) -> dict[StreamSegmentName, KeyRange]:
    """The ranges that are known."""
    return known(reader.mapping(lambda: read_segment(reader), lambda: read_range(reader)))


def known(ranges: Mapping[StreamSegmentName, KeyRange | None]) -> dict[StreamSegmentName, KeyRange]:
    return {segment: key_range for segment, key_range in ranges.items() if key_range is not None}


def own_revision(data: bytes) -> bytes:
    """A revision of ours, which Pravega's readers skip."""
    return _LEASE_MAGIC + data


def read_own_revision(revisions: list[FieldReader], number: int) -> FieldReader | None:
    """The fields of a revision of ours; None if there is none."""
    if len(revisions) <= number or revisions[number].left_bytes < len(_LEASE_MAGIC):
        return None
    return revisions[number] if revisions[number].take(len(_LEASE_MAGIC)) == _LEASE_MAGIC else None


def _is_initial(state: GroupState) -> bool:
    plain = initial_state(
        state.configuration, state.unassigned, state.ends, state.ranges, is_updating=state.is_updating
    )
    return state == plain


def _initial_revisions(state: GroupState) -> list[bytes]:
    ranges = state.ranges
    with_ranges = mapping(
        {(segment, ranges.get(segment)): offset for segment, offset in state.unassigned.items()},
        lambda key: segment_bytes(key[0]) + range_bytes(key[1]),
        int64,
    )
    first = blob(_configuration_bytes(state.configuration)) + positions_bytes(state.unassigned)
    return [first + positions_bytes(state.ends), with_ranges, boolean(state.is_updating)]


def _read_initial(revisions: list[FieldReader]) -> GroupState:
    first = revisions[0]
    configuration = _read_configuration(FieldReader(first.blob()))
    starts = read_positions(first)
    ends = read_positions(first)
    ranges: dict[StreamSegmentName, KeyRange] = {}
    if len(revisions) > 1:
        second = revisions[1]
        offsets = second.mapping(lambda: (read_segment(second), read_range(second)), second.int64)
        ranges = known(dict(offsets.keys()))
        starts = {segment: offset for (segment, _), offset in offsets.items()}
    updating = len(revisions) > 2 and revisions[2].boolean()
    return initial_state(configuration, starts, ends, ranges, is_updating=updating)


def _compact_revisions(state: GroupState) -> list[bytes]:
    first = [
        blob(_configuration_bytes(state.configuration)),
        blob(_checkpoints_bytes(state.checkpoints)),
        mapping(state.lags_ms, text, int64),
        mapping(state.future, segment_bytes, lambda before: items(sorted(before), int64)),
        mapping(state.assigned, text, positions_bytes),
        positions_bytes(state.unassigned),
        positions_bytes(state.ends),
    ]
    segments = {**dict.fromkeys(state.future), **dict.fromkeys(state.positions), **dict.fromkeys(state.last_read)}
    second = positions_bytes(state.last_read) + ranges_bytes(state.ranges, segments)
    revisions = [b"".join(first), second, boolean(state.is_updating)]
    if state.leases_ms:
        revisions.append(own_revision(mapping(state.leases_ms, text, int64)))
    return revisions


def _read_compact(revisions: list[FieldReader]) -> GroupState:
    first = revisions[0]
    configuration = _read_configuration(FieldReader(first.blob()))
    checkpoints = _read_checkpoints(FieldReader(first.blob()))
    lags_ms = first.mapping(first.text, first.int64)
    future = first.mapping(lambda: read_segment(first), lambda: frozenset(first.items(first.int64)))
    assigned = first.mapping(first.text, lambda: read_positions(first))
    unassigned, ends = read_positions(first), read_positions(first)
    last_read: dict[StreamSegmentName, int] = {}
    ranges: dict[StreamSegmentName, KeyRange] = {}
    if len(revisions) > 1:
        last_read, ranges = read_positions(revisions[1]), read_ranges(revisions[1])
    own = read_own_revision(revisions, 3)
    return GroupState(
        configuration=configuration,
        unassigned=unassigned,
        ends=ends,
        assigned=assigned,
        future=future,
        last_read=last_read,
        lags_ms=lags_ms,
        leases_ms={} if own is None else own.mapping(own.text, own.int64),
        ranges=ranges,
        checkpoints=checkpoints,
        is_updating=len(revisions) > 2 and revisions[2].boolean(),
    )


def _checkpoints_bytes(checkpoints: Checkpoints) -> bytes:
    first = [
        items(checkpoints.names, text),
        mapping(checkpoints.waiting_for, text, lambda readers: items(readers, text)),
        mapping(checkpoints.positions, text, positions_bytes),
        positions_bytes(checkpoints.last or {}),
    ]
    return stored_object([b"".join(first), boolean(checkpoints.last_published)])


def _read_checkpoints(reader: FieldReader) -> Checkpoints:
    first, *later = reader.stored_object()
    checkpoints = Checkpoints(
        names=tuple(first.items(first.text)),
        waiting_for=first.mapping(first.text, lambda: tuple(first.items(first.text))),
        positions=first.mapping(first.text, lambda: read_positions(first)),
        last=read_positions(first) or None,
        last_published=later[0].boolean() if later else True,
    )
    if not checkpoints.positions.keys() >= {*checkpoints.names, *checkpoints.waiting_for}:
        raise CorruptError("the state of a reader group has a checkpoint without positions")
    return checkpoints


def _configuration_bytes(configuration: SharedConfiguration) -> bytes:
    first = int64(configuration.automatic_checkpoint_interval_ms) + int64(configuration.group_refresh_ms)
    for cuts in (configuration.starts, configuration.ends):
        first += mapping(
            {name: (name, cut) for name, cut in cuts.items()}, text, lambda named: blob(_cut_bytes(*named))
        )
    third = compact_int(_RETENTION_MODES.index(configuration.retention)) + int64(configuration.generation)
    return stored_object(
        [first, first + int32(configuration.outstanding_checkpoints_max), third + uuid(configuration.group_id)]
    )


def _read_configuration(reader: FieldReader) -> SharedConfiguration:
    """The later revisions repeat and extend the first one."""
    revisions = reader.stored_object()
    fields = revisions[min(1, len(revisions) - 1)]
    interval_ms, refresh_ms = fields.int64(), fields.int64()
    starts = fields.mapping(lambda: _read_stream(fields), lambda: _read_cut(fields.blob()))
    ends = fields.mapping(lambda: _read_stream(fields), lambda: _read_cut(fields.blob()))
    outstanding = fields.int32() if len(revisions) > 1 else OUTSTANDING_CHECKPOINTS_DEFAULT
    mode, generation, group_id = 0, -1, NO_GROUP_ID
    if len(revisions) > 2:
        mode, generation, group_id = revisions[2].compact_int(), revisions[2].int64(), revisions[2].uuid()
    if mode >= len(_RETENTION_MODES):
        raise CorruptError(f"a reader group has the retention mode {mode}: expected 0 to {len(_RETENTION_MODES) - 1}")
    return SharedConfiguration(
        starts=starts,
        ends=ends,
        group_id=group_id,
        generation=generation,
        retention=_RETENTION_MODES[mode],
        group_refresh_ms=refresh_ms,
        automatic_checkpoint_interval_ms=interval_ms,
        outstanding_checkpoints_max=outstanding,
    )


def _read_stream(reader: FieldReader) -> str:
    """The scoped name of a stream."""
    name = reader.text()
    scope, _, stream = name.partition("/")
    try:
        check_known_name("scope", scope)
        check_known_name("stream", stream)
    except InvalidRequestError as error:
        raise CorruptError(f"the state of a reader group names no stream: {error}") from error
    return name


def _cut_bytes(scoped_name: str, cut: Offsets | None) -> bytes:
    """The stored form of a stream cut; that of no bound has no bytes."""
    if cut is None:
        return b""
    return stored_object([text(scoped_name) + mapping(cut, compact_long, compact_signed_long)], version=_CUT_VERSION)


def _read_cut(data: memoryview) -> dict[int, int] | None:
    if not data:
        return None
    version = data[1] if len(data) > 1 else _CUT_VERSION
    (reader, *_) = FieldReader(data).stored_object(version)
    if version > _CUT_VERSION:
        raise CorruptError(f"a stream cut is of version {version}: expected 0 or {_CUT_VERSION}")
    reader.text()
    return reader.mapping(reader.compact_long, reader.compact_signed_long if version else reader.compact_long)


# The stored form of the updates of a reader group's state, as Pravega's Java client writes and reads them.
#
# Newer fields are in later revisions of an object, which older readers skip. In the same way `NoteProgress` has a
# revision of ours, which Pravega's readers skip: for how long the reader stays online without another update.

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
    offsets = second.mapping(lambda: (read_segment(second), read_range(second)), second.int64)
    own = read_own_revision(revisions, _LEASE_REVISION)
    return NoteProgress(
        reader,
        lag_ms,
        {segment: offset for (segment, _), offset in offsets.items()},
        known(dict(offsets.keys())),
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
    2: lambda revisions: AddReader(revisions[0].text()),
    3: lambda revisions: RemoveReader(revisions[0].text(), read_positions(revisions[0])),
    4: lambda revisions: ReleaseSegment(revisions[0].text(), read_segment(revisions[0]), revisions[0].int64()),
    5: lambda revisions: AcquireSegment(revisions[0].text(), read_segment(revisions[0])),
    6: _read_progress,
    7: _read_complete,
    8: lambda revisions: ReachCheckpoint(revisions[0].text(), revisions[0].text(), read_positions(revisions[0])),
    9: lambda revisions: BeginCheckpoint(revisions[0].text()),
    10: lambda revisions: ClearCheckpointsBefore(revisions[0].text()),
    11: lambda revisions: NotePublished(revisions[0].boolean()),
    12: lambda revisions: NoteUpdating(revisions[0].boolean()),
    13: lambda revisions: RemoveOutstandingCheckpoints(),
}
