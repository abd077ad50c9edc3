"""Framed events to and from Arrow columns, without a Python object per payload.

An event in a segment is an 8-byte header (type word 0, payload length, both big-endian 32 bit) and its payload.
`parse_events` takes the whole events at the front of a buffer. `ColumnAssembler` feeds it windows of any size and
carries a cut-off event from one to the next. Both refuse bytes that are not events, and a range that does not end on
an event boundary, because a wrong row is worse than a failed task. `frame_events` is the opposite direction.

This module needs pyarrow and numpy, which are optional (extras `headrace[arrow]` and `headrace[spark]`). Import it only
where columns are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.errors import CorruptError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE, EVENT_HEADER_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]
EVENT_TYPE = 0
EVENT_BYTES_READ_MAX = EVENT_BYTES_MAX_LARGE
"""Largest payload that is read: what our writers write at most. Compatible ones may write more; memory must have some
end."""

_HEADER = Struct(">II")
_LENGTH_AT = 4
_HEADER_AS_ONE = Struct(">Q")
"""With the type of an event, the header is its length as one number. With any other type no event has that length."""

_OFFSET_BYTES = 8
_NOTHING_BETWEEN = pa.LargeBinaryArray.from_buffers(
    pa.large_binary(), 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")]
)[0]
"""An empty value. `pyarrow.scalar` would import pandas, see `int64_array`."""


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Whole events from the front of a buffer.

    `events` are the payloads (Arrow binary), `offsets` where each event's header starts in the segment (int64);
    `bytes_used` is the length of the buffer they took.
    """

    events: pa.BinaryArray
    offsets: pa.Int64Array
    bytes_used: int


def int64_array(values: IntArray) -> pa.Int64Array:
    """The numbers as an Arrow array, without a copy.

    `pyarrow.array` would import pandas for them, if that is installed: a second of processor time.
    """
    return pa.Int64Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def parse_events(buffer: Buffer, base_offset: int) -> EventColumns:
    """The whole events at the front of `buffer`, which starts at `base_offset` of the segment and on an event boundary.

    Raises:
        CorruptError: a type word is not that of an event.
    """
    view = memoryview(buffer).cast("B")
    return _parse_one_size(view, base_offset) or _parse_any_size(view, base_offset)


def _parse_one_size(view: memoryview, base_offset: int) -> EventColumns | None:
    """All events at once when they are of one size (ten times faster); None if they are not."""
    if len(view) < EVENT_HEADER_BYTES:
        return None
    kind, payload_bytes = _HEADER.unpack_from(view)
    frame_bytes = EVENT_HEADER_BYTES + payload_bytes
    count = len(view) // frame_bytes
    if kind != EVENT_TYPE or count < 2:
        return None
    frames = np.frombuffer(view, np.uint8, count * frame_bytes).reshape(count, frame_bytes)
    if not (frames[:, :EVENT_HEADER_BYTES] == frames[0, :EVENT_HEADER_BYTES]).all():
        return None
    rest = view[count * frame_bytes :]
    if len(rest) >= EVENT_HEADER_BYTES and rest[:EVENT_HEADER_BYTES] != view[:EVENT_HEADER_BYTES]:
        return None  # a smaller event may be whole in there
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(payload_bytes)
    payloads = np.ascontiguousarray(frames[:, EVENT_HEADER_BYTES:])
    events = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(payloads.reshape(-1))]
    )
    offsets = int64_array(np.arange(count, dtype=np.int64) * frame_bytes + base_offset)
    return EventColumns(events, offsets, count * frame_bytes)


def _parse_any_size(view: memoryview, base_offset: int) -> EventColumns:
    """Headers are walked in Python, payloads are gathered in C++: every second slice of the frames' boundaries."""
    starts = _event_starts(view)
    count = len(starts) - 1
    _check_type_words(view, starts, base_offset)
    boundaries = np.empty(2 * count + 1, np.int32)
    boundaries[0::2] = starts
    boundaries[1::2] = starts[:-1] + EVENT_HEADER_BYTES
    slices = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(boundaries), pa.py_buffer(view)])
    events = slices.take(int64_array(np.arange(count, dtype=np.int64) * 2 + 1))
    return EventColumns(events, int64_array(starts[:-1].astype(np.int64) + base_offset), int(starts[-1]))


def _event_starts(view: memoryview) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where each whole event starts, and after them where the next one would."""
    position, size = 0, len(view)
    starts: list[int] = []
    append, unpack = starts.append, _HEADER_AS_ONE.unpack_from
    last_header = size - EVENT_HEADER_BYTES
    while position <= last_header:
        append(position)
        (length_bytes,) = unpack(view, position)
        position += EVENT_HEADER_BYTES + length_bytes
    if position > size:
        position = starts.pop()
    starts.append(position)
    return np.array(starts, np.int32)


def _check_type_words(view: memoryview, starts: np.ndarray[tuple[int], np.dtype[np.int32]], base_offset: int) -> None:
    """Also of the event that is cut off after the whole ones, as far as its type word is there."""
    first_bytes = starts if starts[-1] + _LENGTH_AT <= len(view) else starts[:-1]
    if len(view) < _LENGTH_AT:
        return
    words = np.ndarray((len(view) - _LENGTH_AT + 1,), ">u4", view, strides=(1,))  # the word at each byte of the view
    wrong = words[first_bytes] != EVENT_TYPE
    if wrong.any():
        position = int(first_bytes[int(wrong.argmax())])
        kind = int.from_bytes(view[position : position + _LENGTH_AT], "big")
        raise CorruptError(
            f"offset {base_offset + position} holds no event: its type word is {kind}, expected {EVENT_TYPE}. Either"
            " the range does not start on an event boundary or the segment holds something else than events",
            details={"offset": base_offset + position, "type": kind},
            code="not_an_event",
        )


class ColumnAssembler:
    """Windows of one segment range in, event columns out; holds at most one cut-off event and one window.

    The range is `[start, stop)`, both event boundaries. Without `stop` it has no end.
    """

    def __init__(self, start: int, stop: int | None = None) -> None:
        self.offset = start
        """Where the first event starts that is not yet returned, in bytes of the segment."""
        self._stop = stop
        self._parts: list[Buffer] = []
        self._held_bytes = 0
        self._needed_bytes = EVENT_HEADER_BYTES

    @property
    def cut_off_bytes(self) -> int:
        """The bytes after `offset` that belong to an incomplete event."""
        return self._held_bytes

    def add(self, window: Buffer) -> EventColumns | None:
        """The events that `window` completes, if any.

        Raises:
            CorruptError: the bytes are no events, an event is longer than what is left of the range or than
                EVENT_BYTES_READ_MAX.
        """
        self._parts.append(window)
        self._held_bytes += memoryview(window).nbytes
        if self._held_bytes < self._needed_bytes:
            return None
        buffer = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        columns = parse_events(buffer, self.offset)
        self._carry(memoryview(buffer).cast("B")[columns.bytes_used :], self.offset + columns.bytes_used)
        return columns if columns.bytes_used else None

    def finish(self) -> None:
        """Raises CorruptError unless the range was read to its end and ended on an event boundary."""
        if self._held_bytes or self.offset != self._stop:
            raise CorruptError(
                f"the range ends at {self._stop}, but its last whole event at {self.offset}: the stream cut is not on"
                " an event boundary, or bytes are missing",
                details={"stop": self._stop, "last_boundary": self.offset},
                code="not_an_event_boundary",
            )

    def _carry(self, rest: memoryview, offset: int) -> None:
        """Keeps the cut-off event. It is copied, so that it does not keep its whole window alive."""
        self.offset = offset
        self._parts = [bytes(rest)] if rest else []
        self._held_bytes = len(rest)
        self._needed_bytes = EVENT_HEADER_BYTES
        if len(rest) >= EVENT_HEADER_BYTES:
            payload_bytes: int = _HEADER.unpack_from(rest)[1]
            self._needed_bytes += payload_bytes
            self._check_length(payload_bytes)

    def _check_length(self, payload_bytes: int) -> None:
        left = EVENT_BYTES_READ_MAX if self._stop is None else self._stop - self.offset - EVENT_HEADER_BYTES
        if payload_bytes > min(left, EVENT_BYTES_READ_MAX):
            raise CorruptError(
                f"the event at offset {self.offset} says it has {payload_bytes} bytes, but the range has {left} more"
                f" and {EVENT_BYTES_READ_MAX} is the most that is read: the stream cut is not on an event boundary, or"
                " the segment holds something else than events",
                details={"offset": self.offset, "length_bytes": payload_bytes, "left_bytes": left},
                code="not_an_event_boundary",
            )


def assemble_events(windows: Iterable[Buffer], start: int, stop: int) -> Iterator[EventColumns]:
    """The events of the segment range `[start, stop)`, whose bytes are the concatenated `windows`.

    Raises:
        CorruptError: as `ColumnAssembler`.
    """
    assembler = ColumnAssembler(start, stop)
    for window in windows:
        columns = assembler.add(window)
        if columns is not None:
            yield columns
    assembler.finish()


@dataclass(frozen=True, slots=True)
class FramedEvents:
    """Events with their headers: `data` are the bytes, `ends` where in them each event ends (int64)."""

    data: memoryview
    ends: IntArray


def frame_events(payloads: pa.LargeBinaryArray, order: IntArray | None = None) -> FramedEvents:
    """The payloads, each after its header, in their order or in that of the positions `order`.

    The array has no nulls, and no payload is larger than EVENT_BYTES_MAX_LARGE: the caller checks both. All together
    they are shorter than 2^63 bytes.
    """
    offsets = payload_offsets(payloads)
    lengths = np.diff(offsets)
    count = len(lengths)
    if count and (lengths == lengths[0]).all():
        return _frame_one_size(payloads, int(offsets[0]), count, int(lengths[0]), order)
    if order is not None:
        payloads, lengths = payloads.take(int64_array(order)), lengths[order]
    headers = np.zeros((count, 2), ">i4")
    headers[:, 1] = lengths
    ends = np.arange(count + 1, dtype=np.int64) * EVENT_HEADER_BYTES
    column = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(headers.reshape(-1).view(np.uint8))]
    )
    joined = pc.binary_join_element_wise(column, payloads, _NOTHING_BETWEEN)
    framed_ends = payload_offsets(joined)
    return FramedEvents(memoryview(joined.buffers()[2] or b"")[framed_ends[0] : framed_ends[-1]], framed_ends[1:])


def payload_offsets(payloads: pa.LargeBinaryArray) -> IntArray:
    """Where in the array's data each payload begins, and after them where the last one ends; a view, not a copy."""
    if not len(payloads):
        return np.zeros(1, np.int64)
    return np.frombuffer(payloads.buffers()[1], np.int64, len(payloads) + 1, payloads.offset * _OFFSET_BYTES)


def _frame_one_size(
    payloads: pa.LargeBinaryArray, first_byte: int, count: int, payload_bytes: int, order: IntArray | None
) -> FramedEvents:
    """Five times as fast for events of one size: two strided copies."""
    framed = np.empty((count, EVENT_HEADER_BYTES + payload_bytes), np.uint8)
    framed[:, :EVENT_HEADER_BYTES] = np.frombuffer(_HEADER.pack(EVENT_TYPE, payload_bytes), np.uint8)
    if payload_bytes:
        data = np.frombuffer(payloads.buffers()[2], np.uint8, count * payload_bytes, first_byte)
        rows = data.reshape(count, payload_bytes)
        framed[:, EVENT_HEADER_BYTES:] = rows if order is None else rows[order]
    ends = np.arange(1, count + 1, dtype=np.int64) * framed.shape[1]
    return FramedEvents(framed.reshape(-1).data, ends)
