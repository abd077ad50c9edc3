"""How far the watermarks of a stream have come. A lost record can be restored from the mark segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decode_positions, decoded, position_rows, stream_partition, versioned
from headrace.metadata.stream import create_in_incarnation
from headrace.model.streams import Stream
from headrace.model.watermarks import Watermark, WatermarkState
from headrace.ports.metadata_store import Body, Create, Key, Record, Replace

WATERMARK_SORT = "watermark"


def watermark_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), WATERMARK_SORT)


def watermark_state_body(state: WatermarkState) -> dict[str, Any]:
    last = state.last
    return versioned(
        first_number=state.first_segment_number,
        last=[last.lower_time, last.upper_time, position_rows(last.cut)] if last is not None else None,
        last_offset=state.last_offset,
        end_offset=state.end_offset,
        silent_since=dict(state.silent_since),
    )


def decode_watermark_state(body: Body) -> WatermarkState:
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
    return Watermark(int(lower), int(upper), decode_positions(cut))


@dataclass(frozen=True, slots=True)
class StoredWatermarkState:
    """The state of the watermarks of an incarnation; `version` is None if there is no record, not even an old one."""

    state: WatermarkState
    version: int | None


def read_watermark_state(record: Record | None, stream: Stream) -> StoredWatermarkState:
    """The state in a record. It is empty without a record, or if the record belongs to a former incarnation."""
    empty = WatermarkState(stream.first_segment_number)
    if record is None:
        return StoredWatermarkState(empty, None)
    state = decode_watermark_state(record.body)
    is_present = state.first_segment_number == stream.first_segment_number
    return StoredWatermarkState(state if is_present else empty, record.version)


def write_watermark_state(stream: Stream, state: WatermarkState, version: int | None) -> Create | Replace:
    """The write that replaces the record of this version, or creates the first one if `version` is None."""
    key, body = watermark_key(stream.scope, stream.name), watermark_state_body(state)
    return create_in_incarnation(stream, key, body) if version is None else Replace(key, body, version)
