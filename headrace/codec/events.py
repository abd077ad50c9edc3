"""Events inside a segment: `int32 0, int32 length, payload`. Clients write this framing; servers never look at it."""

from __future__ import annotations

import struct
from typing import Any, overload

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE, EVENT_HEADER_BYTES
from headrace.wire.fields import WireFormatError

_HEADER = struct.Struct(">ii")
_HEADER_AS_ONE = struct.Struct(">q")
"""With a type of 0 the header is its length, as one number. With any other type no event has that length."""

_EVENT_TYPE = 0

ALIKE_EVENTS_MIN = 16
"""After this many consecutive events of one length, the parser tries to take the next ones of that length together."""


def event_header(length_bytes: int) -> bytes:
    """The 8 bytes before a payload of this length.

    Raises:
        InvalidRequestError: the event is larger than EVENT_BYTES_MAX_LARGE.
    """
    if not 0 <= length_bytes <= EVENT_BYTES_MAX_LARGE:
        raise InvalidRequestError(
            f"an event of {length_bytes} bytes is too large: at most {EVENT_BYTES_MAX_LARGE} bytes; split it",
            details={"bytes": length_bytes, "bytes_max": EVENT_BYTES_MAX_LARGE},
            code="event_too_large",
        )
    return _HEADER.pack(_EVENT_TYPE, length_bytes)


def frame_event(payload: bytes | bytearray | memoryview) -> bytes:
    """Header and payload in one; raises as `event_header`."""
    return event_header(len(payload)) + payload


@overload
def split_events(buffer: bytes, position: int) -> tuple[list[bytes], int]: ...
@overload
def split_events(buffer: memoryview, position: int) -> tuple[list[memoryview], int]: ...
def split_events(buffer: bytes | memoryview, position: int) -> tuple[list[Any], int]:
    """The complete events of `buffer` from `position` on, and where the first incomplete one begins.

    Events are slices of the buffer: copies of bytes, views of a memoryview.

    Raises:
        WireFormatError: the bytes are not an event; the segment was not written as events.
    """
    events: list[Any] = []
    append, unpack = events.append, _HEADER_AS_ONE.unpack_from
    size = len(buffer)
    last_header = size - EVENT_HEADER_BYTES
    length_before = alike = 0
    while position <= last_header:
        (length_bytes,) = unpack(buffer, position)
        if not 0 <= length_bytes <= EVENT_BYTES_MAX_LARGE:
            kind, length_bytes = _HEADER.unpack_from(buffer, position)
            raise WireFormatError(
                f"there is no event at byte {position} of what was read (type {kind}, length {length_bytes}); "
                "was this segment written as events, and does reading begin between two of them?",
                details={"position": position, "type": kind, "length_bytes": length_bytes},
            )
        start = position + EVENT_HEADER_BYTES
        end = start + length_bytes
        if end > size:
            break
        append(buffer[start:end])
        position = end
        if length_bytes != length_before:
            length_before, alike = length_bytes, 0
            continue
        alike += 1
        if alike == ALIKE_EVENTS_MIN and isinstance(buffer, bytes):
            alike = 0
            position += _take_alike(buffer, position, length_bytes, events)
    return events, position


def _take_alike(buffer: bytes, position: int, length_bytes: int, events: list[bytes]) -> int:
    """Append the next events as far as they all have this length; how many bytes they take with their headers.

    Two to three times as fast as one after the other, and events of one kind often have one length.
    """
    header = event_header(length_bytes)
    event_bytes = EVENT_HEADER_BYTES + length_bytes
    fitting = (len(buffer) - position) // event_bytes
    before = len(events)
    view = memoryview(buffer)[position : position + fitting * event_bytes]
    for own_header, payload in struct.iter_unpack(f"{EVENT_HEADER_BYTES}s{length_bytes}s", view):
        if own_header != header:
            break
        events.append(payload)
    return (len(events) - before) * event_bytes


def iter_events(buffer: bytes | bytearray | memoryview) -> tuple[list[memoryview], int]:
    """The complete events at the begin of `buffer` as views of it, and how many bytes they take with their headers.

    The remaining bytes are the start of an incomplete event. Raises as `split_events`.
    """
    return split_events(memoryview(buffer), 0)


class EventAssembler:
    """Turns consecutive reads of one segment into events. It keeps the start of an incomplete event."""

    def __init__(self, offset: int) -> None:
        """`offset` in the segment where the first read begins."""
        self.offset = offset
        self._carry = bytearray()

    def add(self, data: memoryview) -> list[bytes]:
        """The events that are complete now; `offset` moves behind them.

        Raises:
            WireFormatError: the bytes are not an event.
        """
        if self._carry and not self._is_first_complete(len(data)):
            self._carry += data
            return []
        whole = b"".join((self._carry, data))
        self._carry.clear()  # otherwise a large event would be in memory three times
        events, consumed = split_events(whole, 0)
        self._carry = bytearray(memoryview(whole)[consumed:])
        self.offset += consumed
        return events

    @property
    def cut_off_bytes(self) -> int:
        """The bytes after `offset` that belong to an incomplete event."""
        return len(self._carry)

    def _is_first_complete(self, more_bytes: int) -> bool:
        """Whether the first event is complete with `more_bytes` more.

        This avoids parsing and copying while a large event arrives in parts.
        """
        if len(self._carry) < EVENT_HEADER_BYTES:
            return len(self._carry) + more_bytes >= EVENT_HEADER_BYTES
        kind, length_bytes = _HEADER.unpack_from(self._carry)
        is_event = kind == 0 and 0 <= length_bytes <= EVENT_BYTES_MAX_LARGE
        return not is_event or len(self._carry) + more_bytes - EVENT_HEADER_BYTES >= length_bytes
