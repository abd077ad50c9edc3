"""The newest watermark of a stream. Offsets are in bytes; the application chooses the unit of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.watermarks import Watermark
from headrace.model.writer_marks import positions_of


@dataclass(frozen=True, slots=True)
class NewestWatermark:
    """The newest watermark, None before the first one.

    It begins at `offset` of the segment `mark_segment`, which exists only after the first watermark.
    """

    watermark: Watermark | None
    mark_segment: str
    offset: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> NewestWatermark:
        shown = document["watermark"]
        watermark = None if shown is None else _watermark_from_json(shown)
        return cls(watermark, str(document["markSegment"]), int(document["offset"]))

    def to_json(self) -> dict[str, Any]:
        watermark = None if self.watermark is None else _watermark_json(self.watermark)
        return {"watermark": watermark, "markSegment": self.mark_segment, "offset": self.offset}


def _watermark_json(watermark: Watermark) -> dict[str, Any]:
    cut = [
        {
            "segmentId": one.segment.segment_id,
            "low": one.segment.key_range.low,
            "high": one.segment.key_range.high,
            "offset": one.offset,
        }
        for one in watermark.cut
    ]
    return {"lowerTime": watermark.lower_time, "upperTime": watermark.upper_time, "cut": cut}


def _watermark_from_json(document: Mapping[str, Any]) -> Watermark:
    offsets = {
        StreamSegment(int(one["segmentId"]), KeyRange(float(one["low"]), float(one["high"]))): int(one["offset"])
        for one in document["cut"]
    }
    return Watermark(int(document["lowerTime"]), int(document["upperTime"]), positions_of(offsets))
