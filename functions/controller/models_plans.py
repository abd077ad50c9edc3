"""JSON of the routes of plans: the shapes of the values in `headrace.api.plans`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from functions.controller.models_history import Chunk
from functions.controller.models_segments import Endpoint, Offsets, SegmentRangeModel
from functions.controller.parameters import OFFSET_MAX, SEGMENT_ID_MAX, WireModel
from headrace.api.plans import RangeToPlan
from headrace.model.limits import RANGES_PER_PLAN_MAX


class NextCutRequest(WireModel):
    from_: Offsets | None = Field(default=None, alias="from", description="null: the head")
    to: Offsets | None = Field(default=None, description="null: the tail")
    bytes: int | None = Field(default=None, ge=1, le=OFFSET_MAX, description="About so many; null: everything")
    strictKeyOrder: bool = Field(default=False, description="Never a segment together with those that it replaced")
    onTruncation: Literal["fail", "skip"] = Field(
        default="fail", description="If bytes after `from` were truncated: an error, or start at the head there"
    )


class Lost(WireModel):
    segmentId: int
    fromOffset: int
    bytes: int


class NextCut(WireModel):
    segments: list[SegmentRangeModel]
    from_: Offsets = Field(alias="from", description="As requested, at the head where that was truncated")
    to: Offsets = Field(description="The end of the batch")
    reachedEnd: bool = Field(description="Nothing is left after it")
    leftBytes: int | None = Field(description="After it up to the end; null if only a longer walk would tell")
    lost: list[Lost] = Field(description="Truncated ranges after the requested cut")
    lostBytes: int | None = Field(description="In all of them; null if there are more than are listed")


class PlanRequestRange(WireModel):
    segmentId: int = Field(ge=0, le=SEGMENT_ID_MAX)
    start: int = Field(ge=0, le=OFFSET_MAX, description="First byte, where an event begins")
    end: int = Field(ge=1, le=OFFSET_MAX, description="End of the range, where an event ends")
    pieceBytes: int | None = Field(
        default=None, ge=1, le=OFFSET_MAX, description="About the length of a piece; null: one piece"
    )

    def value(self) -> RangeToPlan:
        return RangeToPlan(self.segmentId, self.start, self.end, self.pieceBytes)


class RangePlansRequest(WireModel):
    ranges: list[PlanRequestRange] = Field(min_length=1, max_length=RANGES_PER_PLAN_MAX)
    links: bool = Field(default=True, description="Whether pieces get links to their bytes in S3")


class Piece(WireModel):
    start: int
    end: int
    chunks: list[Chunk] = Field(description="From `start` on, without gaps")
    storedUntil: int | None = Field(
        description="Offset up to which S3 has the piece; null if the answer has no room for its links"
    )


class PlannedRange(WireModel):
    segmentId: int
    pieces: list[Piece]
    endpoint: Endpoint | None = Field(description="The segment's store; null if none has claimed its container")


class RangePlanList(WireModel):
    ranges: list[PlannedRange] = Field(description="In the order of the request")
