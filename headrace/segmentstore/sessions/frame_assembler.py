"""Cuts what a connection receives into commands, with the data of appends received straight into the cache.

Only headers are parsed; a size is checked before any memory is taken for it, and an append of a writer that this
connection never announced takes none. Commands that carry keys or entries of tables are received into the cache as a
whole, since they may be large. All connections share one scratch buffer: what is received is consumed at once,
and a connection keeps for itself only the begin of an incomplete frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.codec import wire_commands as wire
from headrace.segmentstore.reading.block_pool import BlockPool
from headrace.segmentstore.reading.reservations import Reservation
from headrace.segmentstore.sessions.limits import CONTROL_FRAME_BYTES_MAX

_FRAME_HEADER_BYTES: Final = 8
_EVENT_HEADER_BYTES: Final = 8

_BLOCK_PREFIX = struct.Struct(">QQ")
_BLOCK_END_PREFIX = struct.Struct(">QQii")
_CONDITIONAL_PREFIX = struct.Struct(">QQqqii")  # with the header of the event
_CONDITIONAL_BLOCK_PREFIX = struct.Struct(">QQqqi")
_BLOCK_END_TRAILER = struct.Struct(">iq")
_REQUEST_ID = struct.Struct(">q")

NO_REQUEST_ID: Final = -1


@dataclass(slots=True)
class AppendFrame:
    """A command with data, on its way in. Fields that a command does not have keep their defaults."""

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


class CommandHandler(Protocol):
    """What a session does with commands; called in the order in which they arrive."""

    def check_append(self, frame: AppendFrame) -> None:
        """Raise WireFormatError if the frame's writer may not append here and now; nothing was reserved for it yet."""
        ...

    def on_append(self, frame: AppendFrame) -> None: ...

    def on_pooled_command(self, type_code: int, received: Reservation) -> None:
        """A command whose payload lies in the cache; the reservation belongs to the handler now."""
        ...

    def on_command(self, command: wire.WireCommand) -> None: ...

    def on_memory_wanted(self) -> None:
        """The cache is full: receive nothing until `on_memory_granted`."""
        ...

    def on_memory_granted(self) -> None:
        """Called from within the pool: schedule `FrameAssembler.resume`, do not call it from here."""
        ...

    @property
    def accepts_commands(self) -> bool:
        """False stops the assembler between two frames until `resume`."""
        ...


class FrameAssembler:
    """The receiving half of one connection. `scratch` is at least CONTROL_FRAME_BYTES_MAX long and may be shared."""

    def __init__(self, pool: BlockPool, scratch: memoryview, handler: CommandHandler) -> None:
        self._pool = pool
        self._scratch = scratch
        self._handler = handler
        self._leftover = b""
        self._append: AppendFrame | None = None
        self._targets: list[memoryview] = []
        self._waiting = False
        self._closed = False

    @property
    def inside_frame(self) -> bool:
        """Whether the peer owes the rest of a frame."""
        return not self._waiting and (bool(self._leftover) or self._append is not None)

    def writable(self) -> memoryview:
        """Where the next received bytes belong; valid until `received`, which must follow before anything else."""
        if self._targets:
            return self._targets[0]
        if self._leftover:
            self._scratch[: len(self._leftover)] = self._leftover
            return self._scratch[len(self._leftover) :]
        return self._scratch

    def received(self, count: int) -> None:
        """Take note of `count` bytes in `writable()`.

        Raises:
            WireFormatError: these bytes are not this protocol; the connection is to be closed.
        """
        if self._targets:
            target = self._targets[0][count:]
            if len(target):
                self._targets[0] = target
            else:
                del self._targets[0]
                if not self._targets:
                    self._consume(self._scratch[:0])
            return
        self._consume(self._scratch[: len(self._leftover) + count])

    def resume(self) -> None:
        """Go on with what was received before; raises as `received`."""
        if not self._waiting:
            self._consume(memoryview(self._leftover))

    def close(self) -> None:
        """Give back what an incomplete append holds."""
        self._closed = True
        self._targets = []
        self._leftover = b""
        if self._append is not None and self._append.data is not None:
            self._pool.release(self._append.data)
        self._append = None

    def _consume(self, view: memoryview) -> None:
        position = 0
        while not self._closed:
            taken = self._continue_append(view[position:]) if self._append else self._begin_frame(view[position:])
            if taken < 0:
                break
            position += taken
        self._leftover = b"" if self._closed else bytes(view[position:])

    def _continue_append(self, view: memoryview) -> int:
        """Bytes consumed for the data and the trailer of the current append; -1 if more must come first."""
        frame = self._append
        if frame is None or frame.data is None:
            return -1
        filled = self._fill(view)
        rest = view[filled:]
        if self._targets or len(rest) < frame.trailer_bytes:
            return filled or -1
        _read_trailer(frame, rest[: frame.trailer_bytes])
        self._append = None
        if frame.type_code in _POOLED:
            self._handler.on_pooled_command(frame.type_code, frame.data)
        else:
            self._handler.on_append(frame)
        return filled + frame.trailer_bytes

    def _fill(self, view: memoryview) -> int:
        filled = 0
        while self._targets and filled < len(view):
            target = self._targets[0]
            count = min(len(target), len(view) - filled)
            target[:count] = view[filled : filled + count]
            filled += count
            if count == len(target):
                del self._targets[0]
            else:
                self._targets[0] = target[count:]
        return filled

    def _begin_frame(self, view: memoryview) -> int:
        if len(view) < _FRAME_HEADER_BYTES or not self._handler.accepts_commands:
            return -1
        type_code, length = wire.decode_header(view)
        read_prefix = _PREFIXES.get(type_code)
        if read_prefix is not None:
            prefix_bytes, read = read_prefix
            if length < prefix_bytes:
                raise wire.WireFormatError(f"an append command of type {type_code} has only {length} payload bytes")
            if len(view) < _FRAME_HEADER_BYTES + prefix_bytes:
                return -1
            frame = read(view[_FRAME_HEADER_BYTES:], length)
            self._handler.check_append(frame)
            return self._receive_data(frame, _FRAME_HEADER_BYTES + prefix_bytes)
        if type_code in _POOLED:
            return self._receive_data(AppendFrame(type_code, 0, length, 0), _FRAME_HEADER_BYTES)
        end = _FRAME_HEADER_BYTES + length
        if end > CONTROL_FRAME_BYTES_MAX:
            raise wire.WireFormatError(
                f"a command of type {type_code} has {length} payload bytes, allowed are {CONTROL_FRAME_BYTES_MAX}"
            )
        if len(view) < end:
            return -1
        self._handler.on_command(wire.decode(type_code, view[_FRAME_HEADER_BYTES:end]))
        return end

    def _receive_data(self, frame: AppendFrame, consumed: int) -> int:
        if frame.data_bytes > self._pool.reservation_bytes_max:
            raise wire.WireFormatError(
                f"an append of {frame.data_bytes} bytes exceeds what this store's cache takes at once, "
                f"{self._pool.reservation_bytes_max} bytes"
            )
        self._append = frame
        reservation = self._pool.reserve(frame.data_bytes)
        if reservation is not None:
            self._start_data(reservation)
        else:
            self._waiting = True
            self._handler.on_memory_wanted()
            self._pool.wait(frame.data_bytes, self._granted)
        return consumed

    def _granted(self, reservation: Reservation) -> None:
        self._waiting = False
        if self._append is not None:
            self._start_data(reservation)
        else:
            self._append = AppendFrame(0, 0, 0, 0, data=reservation)  # given back by `close`, outside of the pool
        self._handler.on_memory_granted()

    def _start_data(self, reservation: Reservation) -> None:
        frame = self._append
        if frame is None:
            return
        frame.data = reservation
        self._targets = [part for part in reservation.parts if len(part)]
        if frame.event_header:
            self._fill(memoryview(frame.event_header))


def _read_trailer(frame: AppendFrame, trailer: memoryview) -> None:
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


_POOLED: Final = frozenset((wire.UpdateTableEntries.TYPE, wire.RemoveTableKeys.TYPE, wire.ReadTable.TYPE))

_PREFIXES: Final[dict[int, tuple[int, Callable[[memoryview, int], AppendFrame]]]] = {
    wire.AppendBlock.TYPE: (_BLOCK_PREFIX.size, _read_block),
    wire.AppendBlockEnd.TYPE: (_BLOCK_END_PREFIX.size, _read_block_end),
    wire.ConditionalAppend.TYPE: (_CONDITIONAL_PREFIX.size, _read_conditional),
    wire.ConditionalBlockEnd.TYPE: (_CONDITIONAL_BLOCK_PREFIX.size, _read_conditional_block),
}
