"""JSON of the route of scaling events."""

from __future__ import annotations

from pydantic import Field

from functions.controller.models_streams import ScaledSegment
from functions.controller.parameters import WireModel
from headrace.controller.scaling_events import ScalingEvents


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


def scaling_event_list(found: ScalingEvents) -> ScalingEventList:
    events = [
        ScalingEventModel(
            time=one.time_ms,
            epoch=one.epoch,
            sealedSegments=list(one.sealed_segments),
            newSegments=[
                ScaledSegment(segmentId=new.segment_id, low=new.key_range.low, high=new.key_range.high)
                for new in one.new_segments
            ],
            splits=one.splits,
            merges=one.merges,
        )
        for one in found.events
    ]
    return ScalingEventList(events=events, next=found.next_time_ms)
