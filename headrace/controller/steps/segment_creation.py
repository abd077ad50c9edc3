"""Creating segments in the stores that own them, with the rate their stream's policy asks for.

A processor may sleep before its request, while others end the operation and what follows it removes the segments. So
the stream is read after the segments were made, and those that no later operation would remove are deleted again. That
is safe at any time: the name of a stream segment is never reused. A processor may also die before that read. So the
segments are noted before the request, and a tick looks at them when the processor is certainly over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.codec.records.creation_record import Creation, creation_body
from headrace.controller.workflow import Tools
from headrace.metadata import keys
from headrace.metadata.stream_records import StoredStream
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_configuration import ScalingPolicy, ScalingType
from headrace.model.truncation import segments_left
from headrace.ports.metadata_store import Create, WriteConflictError
from headrace.ports.segment_stores import SegmentScaleRate

CREATION_LOOKED_AT_AFTER_MS = 3_600_000
"""Far longer than a processor lives: its function ends after a minute, and its requests are answered or lost then."""

_SCALE_TYPES = {
    ScalingType.FIXED_NUM_SEGMENTS: 0,
    ScalingType.BY_RATE_IN_KBYTES_PER_SEC: 1,
    ScalingType.BY_RATE_IN_EVENTS_PER_SEC: 2,
}
"""What CreateSegment carries for each policy."""


def create_segments(tools: Tools, stored: StoredStream, segments: Sequence[StreamSegment]) -> StoredStream | None:
    """The stream as it is afterwards, read once, with which the next step can go on; None if it has gone.

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
    """Delete the segments that no operation on the stream as it is now would remove, and that it does not have."""
    unwanted = _unwanted(tools, creation)
    if unwanted:
        tools.segment_stores.delete_segments(_names(creation, unwanted))


def _note(tools: Tools, creation: Creation) -> None:
    due_ms = tools.clock.now_ms() + CREATION_LOOKED_AT_AFTER_MS
    with suppress(WriteConflictError):  # another processor has noted the same at this moment
        tools.records.store.write(Create(keys.creation_key(creation, due_ms), creation_body(creation)))


def _delete_unless_pending(tools: Tools, stored: StoredStream, creation: Creation) -> StoredStream | None:
    """Delete the segments that were made too late; the stream as it is now."""
    found = tools.records.find(creation.scope, creation.stream)
    if found is None or found.stream.pending != stored.stream.pending:
        delete_unwanted(tools, creation)
    return found


def _unwanted(tools: Tools, creation: Creation) -> Sequence[int]:
    """Of segments made for an operation that has ended: those that no deletion, truncation or scale will remove."""
    try:
        present, truncation = tools.records.get_with_truncation(creation.scope, creation.stream)
        if present.stream.first_segment_number != creation.first_segment_number or present.stream.is_deleting:
            return creation.segments
        numbers = sorted({segment_epoch(one) for one in creation.segments})
        if numbers[-1] > present.stream.recorded_epoch:
            return ()  # the operation runs, or an older version gave it up, which noted them as leftovers
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
