"""Creating segments in the stores that own them, with the rate their stream's policy asks for."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment
from headrace.model.stream_configuration import ScalingPolicy, ScalingType
from headrace.model.streams import Stream
from headrace.ports.segment_stores import SegmentScaleRate
from headrace.workflows.steps import Tools

_SCALE_TYPES = {
    ScalingType.FIXED_NUM_SEGMENTS: 0,
    ScalingType.BY_RATE_IN_KBYTES_PER_SEC: 1,
    ScalingType.BY_RATE_IN_EVENTS_PER_SEC: 2,
}
"""What CreateSegment carries for each policy."""


def create_segments(tools: Tools, stream: Stream, segments: Sequence[StreamSegment]) -> None:
    names = [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]
    rate = scale_rate(stream.configuration.scaling)
    tools.segment_stores.create_segments(names, rate, stream.configuration.rollover_size_bytes)


def scale_rate(policy: ScalingPolicy) -> SegmentScaleRate:
    return SegmentScaleRate(_SCALE_TYPES[policy.type], policy.target_rate)
