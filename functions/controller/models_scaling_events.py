"""JSON of the route of scaling events."""

from __future__ import annotations

from pydantic import Field

from functions.controller.models_streams import ScaledSegment
from functions.controller.parameters import WireModel


class ScalingEventModel(WireModel):
    time: int = Field(description="Milliseconds since 1970")
    epoch: int = Field(description="The epoch that began")
    sealedSegments: list[int]
    newSegments: list[ScaledSegment]
    splits: int = Field(description="Sealed segments with several successors")
    merges: int = Field(description="New segments with several predecessors")


class ScalingEventList(WireModel):
    events: list[ScalingEventModel]
    next: int | None = Field(description="`from` of the next page; null at the end")
