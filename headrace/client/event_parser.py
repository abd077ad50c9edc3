"""Cuts what was read from a segment into events. See `headrace.codec.events` for the format."""

from __future__ import annotations

import struct

from headrace.codec.wire_commands import WireFormatError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_HEADER_BYTES

_HEADER = struct.Struct(">ii")


def split_events(data: bytes, position: int) -> tuple[list[bytes], int]:
    """The complete events of `data` from `position` on, as bytes, and where the first incomplete one begins.

    Raises:
        WireFormatError: something that is no event.
    """
    events: list[bytes] = []
    append, unpack = events.append, _HEADER.unpack_from
    last_header = len(data) - EVENT_HEADER_BYTES
    size = len(data)
    while position <= last_header:
        kind, length_bytes = unpack(data, position)
        if kind or not 0 <= length_bytes <= EVENT_BYTES_MAX:
            raise WireFormatError(
                f"there is no event at byte {position} of what was read (type {kind}, length {length_bytes}); "
                "was this segment written as events, and does reading begin between two of them?",
                details={"position": position, "type": kind, "length_bytes": length_bytes},
            )
        start = position + EVENT_HEADER_BYTES
        end = start + length_bytes
        if end > size:
            break
        append(data[start:end])
        position = end
    return events, position


class EventAssembler:
    """Turns consecutive reads of one segment into events; keeps the begin of one that is cut off."""

    def __init__(self, offset: int) -> None:
        """`offset` in the segment where the first read begins."""
        self.offset = offset
        self._carry = bytearray()

    def add(self, data: memoryview) -> list[bytes]:
        """The events that are complete now; `offset` moves behind them.

        Raises:
            WireFormatError: something that is no event.
        """
        if self._carry:
            self._carry += data
            if not self._is_first_complete():
                return []
            whole = bytes(self._carry)
        else:
            whole = bytes(data)
        events, consumed = split_events(whole, 0)
        self._carry = bytearray(memoryview(whole)[consumed:])
        self.offset += consumed
        return events

    @property
    def cut_off_bytes(self) -> int:
        """Bytes behind `offset` that belong to an incomplete event."""
        return len(self._carry)

    def _is_first_complete(self) -> bool:
        """Spares parsing (and copying) while a large event comes in piece by piece."""
        if len(self._carry) < EVENT_HEADER_BYTES:
            return False
        kind, length_bytes = _HEADER.unpack_from(self._carry)
        is_event = kind == 0 and 0 <= length_bytes <= EVENT_BYTES_MAX
        return not is_event or len(self._carry) - EVENT_HEADER_BYTES >= length_bytes
