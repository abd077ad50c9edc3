"""Append commands as frames: their prefix, their trailer, and the data of a block and its end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace import wire
from headrace.segmentstore.cache.reservations import Reservation, slice_parts
from headrace.segmentstore.connections.connection_limits import CONTROL_FRAME_BYTES_MAX

_EVENT_HEADER_BYTES: Final = 8
_BLOCK_PREFIX = struct.Struct(">QQ")
_BLOCK_END_PREFIX = struct.Struct(">QQii")
_CONDITIONAL_PREFIX = struct.Struct(">QQqqii")  # with the header of the event
_CONDITIONAL_BLOCK_PREFIX = struct.Struct(">QQqqi")
_BLOCK_END_TRAILER = struct.Struct(">iq")
_TAIL_FRAME = struct.Struct(">ii")
_REQUEST_ID = struct.Struct(">q")

NO_REQUEST_ID: Final = -1


@dataclass(slots=True)
class AppendFrame:
    """A command that is being received. Fields that the command does not have keep their defaults."""

    type_code: int
    writer_id: int
    data_bytes: int
    trailer_bytes: int
    whole_events_bytes: int = 0
    event_count: int = 1
    event_number: int = 0
    expected_offset: int | None = None
    request_id: int = NO_REQUEST_ID
    data: Reservation | None = None
    event_header: bytes = b""
    body_bytes: int = 0
    """The bytes after the prefix of the frame."""

    def __post_init__(self) -> None:
        self.body_bytes = self.data_bytes - len(self.event_header) + self.trailer_bytes


def with_block(
    block: AppendFrame, block_parts: list[memoryview], end: AppendFrame, end_data: list[memoryview]
) -> list[memoryview]:
    """The bytes of an append that was sent as an AppendBlock and an AppendBlockEnd."""
    whole = end.whole_events_bytes
    data = slice_parts(block_parts, 0, whole)
    rest = block.data_bytes - whole
    if rest:
        header = b"".join(slice_parts(block_parts, whole, _TAIL_FRAME.size))
        if len(header) < _TAIL_FRAME.size:
            raise wire.WireFormatError(f"a block ends with {rest} bytes, too few for the header of a frame")
        type_code, length = _TAIL_FRAME.unpack(header)
        if length != rest - _TAIL_FRAME.size:
            raise wire.WireFormatError(f"the frame at the end of a block claims {length} bytes, {rest} are left")
        if type_code == wire.PartialEvent.TYPE:
            data += slice_parts(block_parts, whole + _TAIL_FRAME.size, length)
        elif type_code != wire.Padding.TYPE or end.data_bytes:
            raise wire.WireFormatError(f"a block ends with a frame of type {type_code}")
    elif end.data_bytes:
        raise wire.WireFormatError("AppendBlockEnd has data, but its block has no partial event")
    return data + end_data


def read_trailer(frame: AppendFrame, trailer: memoryview) -> None:
    """Read the fields after the data of a whole frame into `frame`."""
    position = 0
    if frame.type_code == wire.AppendBlockEnd.TYPE:
        frame.event_count, frame.event_number = _BLOCK_END_TRAILER.unpack_from(trailer)
        position = _BLOCK_END_TRAILER.size
    if len(trailer) - position >= _REQUEST_ID.size:
        (frame.request_id,) = _REQUEST_ID.unpack_from(trailer, position)


def _read_block(view: memoryview, length: int) -> AppendFrame:
    high, low = _BLOCK_PREFIX.unpack_from(view)
    return AppendFrame(wire.AppendBlock.TYPE, high << 64 | low, length - _BLOCK_PREFIX.size, 0)


def _read_block_end(view: memoryview, length: int) -> AppendFrame:
    high, low, whole_bytes, data_bytes = _BLOCK_END_PREFIX.unpack_from(view)
    trailer_bytes = _check_trailer(length - _BLOCK_END_PREFIX.size, data_bytes, _BLOCK_END_TRAILER.size)
    return AppendFrame(wire.AppendBlockEnd.TYPE, high << 64 | low, data_bytes, trailer_bytes, whole_bytes)


def _read_conditional(view: memoryview, length: int) -> AppendFrame:
    high, low, number, offset, event_type, event_bytes = _CONDITIONAL_PREFIX.unpack_from(view)
    if event_type != 0:
        raise wire.WireFormatError(f"a conditional append carries a frame of type {event_type}, expected an event")
    trailer_bytes = _check_trailer(length - _CONDITIONAL_PREFIX.size, event_bytes, 0)
    header = bytes(view[_CONDITIONAL_PREFIX.size - _EVENT_HEADER_BYTES : _CONDITIONAL_PREFIX.size])
    return AppendFrame(
        wire.ConditionalAppend.TYPE,
        high << 64 | low,
        _EVENT_HEADER_BYTES + event_bytes,
        trailer_bytes,
        event_number=number,
        expected_offset=offset,
        event_header=header,
    )


def _read_conditional_block(view: memoryview, length: int) -> AppendFrame:
    high, low, number, offset, data_bytes = _CONDITIONAL_BLOCK_PREFIX.unpack_from(view)
    trailer_bytes = _check_trailer(length - _CONDITIONAL_BLOCK_PREFIX.size, data_bytes, _REQUEST_ID.size)
    return AppendFrame(
        wire.ConditionalBlockEnd.TYPE,
        high << 64 | low,
        data_bytes,
        trailer_bytes,
        event_number=number,
        expected_offset=offset,
    )


def _check_trailer(behind_prefix_bytes: int, data_bytes: int, trailer_bytes_min: int) -> int:
    trailer_bytes = behind_prefix_bytes - data_bytes
    if data_bytes < 0 or not trailer_bytes_min <= trailer_bytes <= CONTROL_FRAME_BYTES_MAX // 2:
        raise wire.WireFormatError(f"an append claims {data_bytes} data bytes in a frame that does not hold them")
    return trailer_bytes


PREFIXES: Final[dict[int, tuple[int, Callable[[memoryview, int], AppendFrame]]]] = {
    wire.AppendBlock.TYPE: (_BLOCK_PREFIX.size, _read_block),
    wire.AppendBlockEnd.TYPE: (_BLOCK_END_PREFIX.size, _read_block_end),
    wire.ConditionalAppend.TYPE: (_CONDITIONAL_PREFIX.size, _read_conditional),
    wire.ConditionalBlockEnd.TYPE: (_CONDITIONAL_BLOCK_PREFIX.size, _read_conditional_block),
}
"""For each append command: the size of its prefix, which ends with the size of the data, and its reader."""
