"""JSON of the segment routes: the shapes of the values in `headrace.api.segments`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from functions.controller.parameters import OFFSET_MAX, SEGMENT_ID_MAX, WireModel, decimal
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.stream_cuts import END_OF_SEGMENT

Offsets = dict[str, int]
"""Offset in bytes by segment id. The ids are decimal text, because they are keys of a JSON object.

In requests the offset -1 is the end of a sealed segment.
"""


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


class SuccessorModel(WireModel):
    segmentId: int
    name: str
    low: float
    high: float
    predecessors: list[int]


class SuccessorList(WireModel):
    segments: list[SuccessorModel]
    sealed: bool = Field(description="The stream is sealed and ends with this segment")


class Predecessor(WireModel):
    segmentId: int
    name: str
    low: float
    high: float


class PredecessorList(WireModel):
    segments: list[Predecessor]


class Endpoint(WireModel):
    host: str
    port: int
    zone: str
    container: int
    epoch: int = Field(description="Grows with each takeover of the container")


class StreamCutModel(WireModel):
    scopeName: str
    streamName: str
    cut: Offsets
    text: str = Field(description="Pravega's text form of the same cut")


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
    if len(parsed) != len(cut) or not all(END_OF_SEGMENT <= offset <= OFFSET_MAX for offset in parsed.values()):
        raise InvalidRequestError(
            f"{field!r} names a segment twice or has an offset outside -1..{OFFSET_MAX}", code=_INVALID_CUT
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
