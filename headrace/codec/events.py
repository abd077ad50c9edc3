"""Events inside a segment: `int32 0, int32 length, payload`. Clients write this framing; servers never look at it."""

from __future__ import annotations

import struct

from headrace.codec.wire_commands.fields import WireFormatError
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_HEADER_BYTES

_HEADER = struct.Struct(">ii")
_EVENT_TYPE = 0


def event_header(length_bytes: int) -> bytes:
    """The 8 bytes before a payload of this length.

    Raises:
        InvalidRequestError: the event is larger than EVENT_BYTES_MAX.
    """
    if not 0 <= length_bytes <= EVENT_BYTES_MAX:
        raise InvalidRequestError(
            f"an event of {length_bytes} bytes is too large: at most {EVENT_BYTES_MAX} bytes; split it",
            details={"bytes": length_bytes, "bytes_max": EVENT_BYTES_MAX},
            code="event_too_large",
        )
    return _HEADER.pack(_EVENT_TYPE, length_bytes)


def frame_event(payload: bytes | bytearray | memoryview) -> bytes:
    """Header and payload in one; raises as `event_header`."""
    return event_header(len(payload)) + payload


def iter_events(buffer: bytes | bytearray | memoryview) -> tuple[list[memoryview], int]:
    """The complete events at the begin of `buffer` as views of it, and how many bytes they take with their headers.

    What is left behind that count is the begin of an event whose rest is yet to come.

    Raises:
        WireFormatError: something that is no event; bytes of a segment that was not written as events.
    """
    view = memoryview(buffer)
    events: list[memoryview] = []
    append = events.append
    unpack = _HEADER.unpack_from
    position, end = 0, len(view)
    while end - position >= EVENT_HEADER_BYTES:
        kind, length_bytes = unpack(view, position)
        if kind != _EVENT_TYPE or not 0 <= length_bytes <= EVENT_BYTES_MAX:
            raise WireFormatError(
                f"byte {position} of the read is no event header (type {kind}, length {length_bytes})",
                details={"position": position, "type": kind, "length_bytes": length_bytes},
            )
        start = position + EVENT_HEADER_BYTES
        if end - start < length_bytes:
            break
        position = start + length_bytes
        append(view[start:position])
    return events, position
