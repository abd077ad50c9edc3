"""Creates segments in the stores that own them, with the rate of their stream's policy.

A process may stall before its request, while others complete the operation and a later one removes the segments. So
the stream is read after the segments were created, and those that no later operation would remove are deleted again.
That is safe at any time, because the name of a stream segment is never reused. A process may also stop before that
read. So the segments are noted before the request, and a tick checks them when the process has certainly ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.controller.engine import Tools
from headrace.metadata.orphan_segments import Creation, create_creation
from headrace.metadata.stream_records import StoredStream
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_configuration import ScalingPolicy, ScalingType
from headrace.model.truncation import segments_left
from headrace.ports.metadata_store import WriteConflictError
from headrace.ports.segment_stores import SegmentScaleRate

CREATION_LOOKED_AT_AFTER_MS = 3_600_000
"""Far longer than a process runs: its function ends after a minute, and its requests are answered or lost then."""

_SCALE_TYPES = {
    ScalingType.FIXED_NUM_SEGMENTS: 0,
    ScalingType.BY_RATE_IN_KBYTES_PER_SEC: 1,
    ScalingType.BY_RATE_IN_EVENTS_PER_SEC: 2,
}
"""The scale type in CreateSegment for each policy."""


def create_segments(tools: Tools, stored: StoredStream, segments: Sequence[StreamSegment]) -> StoredStream | None:
    """Create the segments. Returns the stream as it is afterwards, for the next step; None if it was deleted.

    One write and one read of metadata.
    """
    stream = stored.stream
    rate = scale_rate(stream.configuration.scaling)
    identifiers = tuple(one.segment_id for one in segments)
    creation = Creation(stream.scope, stream.name, stream.first_segment_number, identifiers)
    _note(tools, creation)
    try:
        tools.segment_stores.create_segments(_names(creation), rate, stream.configuration.rollover_size_bytes)
    except UnavailableError:
        _delete_unless_pending(tools, stored, creation)  # some of the requests may have been carried out
        raise
    return _delete_unless_pending(tools, stored, creation)


def delete_unwanted(tools: Tools, creation: Creation) -> None:
    """Delete the segments that the stream does not have, and that no operation on it would remove."""
    unwanted = _unwanted(tools, creation)
    if unwanted:
        tools.segment_stores.delete_segments(_names(creation, unwanted))


def _note(tools: Tools, creation: Creation) -> None:
    due_ms = tools.clock.now_ms() + CREATION_LOOKED_AT_AFTER_MS
    with suppress(WriteConflictError):  # another processor has noted the same at this moment
        tools.records.store.write(create_creation(creation, due_ms))


def _delete_unless_pending(tools: Tools, stored: StoredStream, creation: Creation) -> StoredStream | None:
    """Delete the segments that were created too late. Returns the present stream."""
    found = tools.records.find(creation.scope, creation.stream)
    if found is None or found.stream.pending != stored.stream.pending:
        delete_unwanted(tools, creation)
    return found


def _unwanted(tools: Tools, creation: Creation) -> Sequence[int]:
    """The segments of an operation that has ended that no deletion, truncation or scale will remove."""
    try:
        present, truncation = tools.records.get_with_truncation(creation.scope, creation.stream)
        if present.stream.first_segment_number != creation.first_segment_number or present.stream.is_deleting:
            return creation.segments
        numbers = sorted({segment_epoch(one) for one in creation.segments})
        if numbers[-1] > present.stream.recorded_epoch:
            return ()  # the operation runs
        recorded = {
            identifier: segment
            for epoch in tools.history.epochs(present.stream, numbers)
            for identifier, segment in epoch.by_id.items()
        }
    except NotFoundError:
        return creation.segments
    present_segments = [recorded[one] for one in creation.segments if one in recorded]
    kept = {one.segment_id for one in segments_left(present_segments, truncation)}
    return [one for one in creation.segments if one not in kept]


def _names(creation: Creation, identifiers: Iterable[int] | None = None) -> list[str]:
    chosen = creation.segments if identifiers is None else identifiers
    return [segment_name(creation.scope, creation.stream, one) for one in chosen]


def scale_rate(policy: ScalingPolicy) -> SegmentScaleRate:
    return SegmentScaleRate(_SCALE_TYPES[policy.type], policy.target_rate)
