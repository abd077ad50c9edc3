"""Creating segments in the stores that own them, with the rate their stream's policy asks for.

A processor may sleep before its request, while others end the operation and what follows it removes the segments. So
the stream is read after the segments were made, and those that no later operation would remove are deleted again. That
is safe at any time: the name of a stream segment is never reused.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metadata.stream_records import StoredStream
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_configuration import ScalingPolicy, ScalingType
from headrace.model.streams import Stream
from headrace.model.truncation import segments_left
from headrace.ports.segment_stores import SegmentScaleRate
from headrace.workflows.steps import Tools

_SCALE_TYPES = {
    ScalingType.FIXED_NUM_SEGMENTS: 0,
    ScalingType.BY_RATE_IN_KBYTES_PER_SEC: 1,
    ScalingType.BY_RATE_IN_EVENTS_PER_SEC: 2,
}
"""What CreateSegment carries for each policy."""


def create_segments(tools: Tools, stored: StoredStream, segments: Sequence[StreamSegment]) -> StoredStream | None:
    """The stream as it is afterwards, read once, with which the next step can go on; None if it has gone."""
    stream = stored.stream
    rate = scale_rate(stream.configuration.scaling)
    try:
        tools.segment_stores.create_segments(_names(stream, segments), rate, stream.configuration.rollover_size_bytes)
    except UnavailableError:
        _delete_unless_wanted(tools, stream, segments)  # some of the requests may have been carried out
        raise
    return _delete_unless_wanted(tools, stream, segments)


def _delete_unless_wanted(tools: Tools, stream: Stream, segments: Sequence[StreamSegment]) -> StoredStream | None:
    """Delete the segments that were made too late; the stream as it is now."""
    found = tools.records.find(stream.scope, stream.name)
    if found is None or found.stream.pending != stream.pending:
        unwanted = _unwanted(tools, stream, segments)
        if unwanted:
            tools.segment_stores.delete_segments(_names(stream, unwanted))
    return found


def _unwanted(tools: Tools, stream: Stream, segments: Sequence[StreamSegment]) -> Sequence[StreamSegment]:
    """Of segments made for an operation that has ended: those that no deletion, truncation or scale will remove."""
    try:
        present, truncation = tools.records.get_with_truncation(stream.scope, stream.name)
        if present.stream.first_segment_number != stream.first_segment_number or present.stream.is_deleting:
            return segments
        numbers = sorted({segment_epoch(one.segment_id) for one in segments})
        if numbers[-1] > present.stream.recorded_epoch:
            return ()  # given up by an older version, which did not use up the number of the epoch: noted as leftovers
        recorded = {one for epoch in tools.history.epochs(present.stream, numbers) for one in epoch.by_id}
    except NotFoundError:
        return segments
    kept = {one for one in segments_left(segments, truncation) if one.segment_id in recorded}
    return [one for one in segments if one not in kept]


def _names(stream: Stream, segments: Sequence[StreamSegment]) -> list[str]:
    return [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]


def scale_rate(policy: ScalingPolicy) -> SegmentScaleRate:
    return SegmentScaleRate(_SCALE_TYPES[policy.type], policy.target_rate)
