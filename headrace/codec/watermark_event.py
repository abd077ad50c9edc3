"""A watermark in a stream's mark segment: an event whose payload is Pravega's stored form of a watermark.

Payload: an object with lower time and upper time (8 bytes each) and a map from a segment, itself an object of id (8
bytes) and two doubles, to an offset (8 bytes).
"""

from __future__ import annotations

import struct

from headrace.codec.serialized_fields import compact_int, data_of_envelope, enveloped, read_compact_int
from headrace.model.errors import CorruptError, HeadraceError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.watermarks import Watermark, positions_of

_TIMES = struct.Struct(">qq")
_SEGMENT = struct.Struct(">qdd")
_OFFSET = struct.Struct(">q")


def watermark_payload(watermark: Watermark) -> bytes:
    """The payload of the event."""
    parts = [_TIMES.pack(watermark.lower_time, watermark.upper_time), compact_int(len(watermark.cut))]
    for one in watermark.cut:
        key_range = one.segment.key_range
        parts.append(enveloped(_SEGMENT.pack(one.segment.segment_id, key_range.low, key_range.high)))
        parts.append(_OFFSET.pack(one.offset))
    return enveloped(b"".join(parts))


def watermark_of_payload(payload: bytes | memoryview) -> Watermark:
    """Raises CorruptError: the event is not a watermark."""
    data, rest = data_of_envelope(memoryview(payload))
    if rest or len(data) < _TIMES.size:
        raise CorruptError("an event of a mark segment is not a watermark: it has too many or too few bytes")
    lower, upper = _TIMES.unpack_from(data)
    count, left = read_compact_int(data[_TIMES.size :])
    cut: dict[StreamSegment, int] = {}
    for _ in range(count):
        key, left = data_of_envelope(left)
        if len(key) < _SEGMENT.size or len(left) < _OFFSET.size:
            raise CorruptError("an event of a mark segment is not a watermark: it ends inside its cut")
        identifier, low, high = _SEGMENT.unpack_from(key)
        try:
            segment = StreamSegment(identifier, KeyRange(low, high))
        except HeadraceError as error:
            raise CorruptError(f"a watermark names segment {identifier} with no key range: {error}") from error
        (cut[segment],) = _OFFSET.unpack_from(left)
        left = left[_OFFSET.size :]
    return Watermark(lower, upper, positions_of(cut))
