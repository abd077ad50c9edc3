"""How far the watermarks of a stream have come. What is lost with it can be read from the mark segment again."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, positions_body, positions_of_body, versioned
from headrace.model.watermarks import Watermark, WatermarkState

WATERMARK_SORT = "watermark"


def watermark_state_body(state: WatermarkState) -> dict[str, Any]:
    last = state.last
    return versioned(
        first_number=state.first_segment_number,
        last=[last.lower_time, last.upper_time, positions_body(last.cut)] if last is not None else None,
        last_offset=state.last_offset,
        end_offset=state.end_offset,
        silent_since=dict(state.silent_since),
    )


def watermark_state_of_body(body: Body) -> WatermarkState:
    return decoded("watermark", body, _watermark_state)


def _watermark_state(body: Body) -> WatermarkState:
    return WatermarkState(
        first_segment_number=int(body["first_number"]),
        last=_watermark(body["last"]),
        last_offset=int(body["last_offset"]),
        end_offset=int(body["end_offset"]),
        silent_since={str(writer): int(since_ms) for writer, since_ms in body["silent_since"].items()},
    )


def _watermark(fields: Any) -> Watermark | None:
    if fields is None:
        return None
    lower, upper, cut = fields
    return Watermark(int(lower), int(upper), positions_of_body(cut))
