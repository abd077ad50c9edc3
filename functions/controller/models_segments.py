"""JSON of the segment routes and the way to and from values."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from functions.controller.parameters import OFFSET_MAX, SEGMENT_ID_MAX, WireModel, decimal
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.controller.segment_views import SegmentAt, SegmentEndpoint, SegmentsAt, SegmentsBetween, Successors
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.stream_cuts import StreamCut

Offsets = dict[str, int]
"""Offset in bytes by segment id: ids are keys here, and so decimal text."""


class Segment(WireModel):
    segmentId: int
    name: str
    low: float
    high: float
    startOffset: int = Field(description="Bytes; -1 where it is not known")


class SegmentList(WireModel):
    segments: list[Segment]
    epoch: int
    sealed: bool


def segment_list(found: SegmentsAt) -> SegmentList:
    segments = [
        Segment(
            segmentId=one.segment.segment_id,
            name=one.name,
            low=one.segment.key_range.low,
            high=one.segment.key_range.high,
            startOffset=one.start_offset,
        )
        for one in found.segments
    ]
    return SegmentList(segments=segments, epoch=found.epoch, sealed=found.is_sealed)


class SuccessorModel(WireModel):
    segmentId: int
    name: str
    low: float
    high: float
    predecessors: list[int]


class SuccessorList(WireModel):
    segments: list[SuccessorModel]
    sealed: bool = Field(description="The stream is sealed and ends with this segment")


def successor_list(found: Successors) -> SuccessorList:
    segments = [
        SuccessorModel(
            segmentId=one.segment.segment_id,
            name=one.name,
            low=one.segment.key_range.low,
            high=one.segment.key_range.high,
            predecessors=list(one.predecessors),
        )
        for one in found.segments
    ]
    return SuccessorList(segments=segments, sealed=found.is_sealed)


class Predecessor(WireModel):
    segmentId: int
    name: str
    low: float
    high: float


class PredecessorList(WireModel):
    segments: list[Predecessor]


def predecessor_list(found: tuple[SegmentAt, ...]) -> PredecessorList:
    segments = [
        Predecessor(
            segmentId=one.segment.segment_id,
            name=one.name,
            low=one.segment.key_range.low,
            high=one.segment.key_range.high,
        )
        for one in found
    ]
    return PredecessorList(segments=segments)


class Endpoint(WireModel):
    host: str
    port: int
    zone: str
    container: int
    epoch: int = Field(description="Grows with each takeover of the container")


def endpoint(found: SegmentEndpoint) -> Endpoint:
    return Endpoint(host=found.host, port=found.port, zone=found.zone, container=found.container, epoch=found.epoch)


class StreamCutModel(WireModel):
    scopeName: str
    streamName: str
    cut: Offsets
    text: str = Field(description="Pravega's text form of the same cut")


def stream_cut(found: StreamCut) -> StreamCutModel:
    return StreamCutModel(
        scopeName=found.scope, streamName=found.stream, cut=_offsets_text(found), text=stream_cut_text(found)
    )


class BetweenRequest(WireModel):
    from_: Offsets | None = Field(default=None, alias="from", description="null: the head")
    to: Offsets | None = Field(default=None, description="null: the tail")


def offsets(field: str, cut: Offsets | None) -> Mapping[int, int] | None:
    """The offsets of a cut in a request.

    Raises:
        InvalidRequestError: code "invalid_stream_cut".
    """
    if cut is None:
        return None
    if len(cut) > SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(f"{field!r} names more than {SEGMENTS_PER_STREAM_MAX} segments", code=_INVALID_CUT)
    parsed = {decimal(key, "segment id", SEGMENT_ID_MAX): offset for key, offset in cut.items()}
    if len(parsed) != len(cut) or not all(0 <= offset <= OFFSET_MAX for offset in parsed.values()):
        raise InvalidRequestError(
            f"{field!r} names a segment twice or holds an offset outside 0..{OFFSET_MAX}", code=_INVALID_CUT
        )
    return parsed


_INVALID_CUT = "invalid_stream_cut"


class SegmentRangeModel(WireModel):
    segmentId: int
    name: str
    low: float
    high: float
    startOffset: int
    endOffset: int
    predecessors: list[int]
    successors: list[int]


class Between(WireModel):
    segments: list[SegmentRangeModel]
    from_: Offsets = Field(alias="from")
    to: Offsets


def between(found: SegmentsBetween) -> Between:
    segments = [
        SegmentRangeModel(
            segmentId=one.range.segment.segment_id,
            name=one.name,
            low=one.range.segment.key_range.low,
            high=one.range.segment.key_range.high,
            startOffset=one.range.start_offset,
            endOffset=one.range.end_offset,
            predecessors=list(one.range.predecessors),
            successors=list(one.range.successors),
        )
        for one in found.ranges
    ]
    return Between(**{"from": _offsets_text(found.from_cut)}, segments=segments, to=_offsets_text(found.to_cut))


def _offsets_text(cut: StreamCut) -> Offsets:
    return {str(identifier): offset for identifier, offset in cut.positions}
