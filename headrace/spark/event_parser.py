"""Framed events into Arrow columns, without a Python object per payload.

An event in a segment is an 8-byte header (type word 0, payload length, both big-endian 32 bit) and its payload.
`parse_events` takes the whole events at the front of a buffer; `EventAssembler` feeds it windows of any size and
carries a cut-off event from one to the next. Both refuse bytes that are not events, and a range that does not end on
an event boundary: a wrong row is worse than a failed task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.model.errors import CorruptError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE, EVENT_HEADER_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

EVENT_TYPE = 0
EVENT_BYTES_READ_MAX = EVENT_BYTES_MAX_LARGE
"""Largest payload that is read: what our writers write at most. Compatible ones may write more; memory must have some
end."""

_HEADER = Struct(">II")
_LENGTH_AT = 4


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Whole events from the front of a buffer.

    `events` are the payloads (Arrow binary), `offsets` where each event's header starts in the segment (int64);
    `bytes_used` is the length of the buffer they took.
    """

    events: pa.BinaryArray
    offsets: pa.Int64Array
    bytes_used: int


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
    offsets = pa.array(np.arange(count, dtype=np.int64) * frame_bytes + base_offset)
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
    events = slices.take(pa.array(np.arange(count, dtype=np.int64) * 2 + 1))
    return EventColumns(events, pa.array(starts[:-1].astype(np.int64) + base_offset), int(starts[-1]))


def _event_starts(view: memoryview) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where each whole event starts, and after them where the next one would."""
    position, size, starts = 0, len(view), []
    last_header = size - EVENT_HEADER_BYTES
    length_at = Struct(">I").unpack_from
    while position <= last_header:
        starts.append(position)
        position += EVENT_HEADER_BYTES + length_at(view, position + _LENGTH_AT)[0]
    if position > size:
        position = starts.pop()
    starts.append(position)
    return np.array(starts, np.int32)


def _check_type_words(view: memoryview, starts: np.ndarray[tuple[int], np.dtype[np.int32]], base_offset: int) -> None:
    """Also of the event that is cut off after the whole ones, as far as its type word is there."""
    first_bytes = starts if starts[-1] + _LENGTH_AT <= len(view) else starts[:-1]
    data = np.frombuffer(view, np.uint8)
    wrong = data[first_bytes[:, None] + np.arange(_LENGTH_AT)].any(axis=1)
    if wrong.any():
        position = int(first_bytes[int(wrong.argmax())])
        kind = int.from_bytes(view[position : position + _LENGTH_AT], "big")
        raise CorruptError(
            f"offset {base_offset + position} holds no event: its type word is {kind}, expected {EVENT_TYPE}. Either"
            " the range does not start on an event boundary or the segment holds something else than events",
            details={"offset": base_offset + position, "type": kind},
            code="not_an_event",
        )


class EventAssembler:
    """Windows of one segment range in, event columns out; holds at most one cut-off event and one window.

    The range is `[start, stop)`, both event boundaries.
    """

    def __init__(self, start: int, stop: int) -> None:
        self._offset = start
        self._stop = stop
        self._parts: list[Buffer] = []
        self._held_bytes = 0
        self._needed_bytes = EVENT_HEADER_BYTES

    def feed(self, window: Buffer) -> EventColumns | None:
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
        columns = parse_events(buffer, self._offset)
        self._carry(memoryview(buffer).cast("B")[columns.bytes_used :], self._offset + columns.bytes_used)
        return columns if columns.bytes_used else None

    def finish(self) -> None:
        """Raises CorruptError unless the range was read to its end and ended on an event boundary."""
        if self._held_bytes or self._offset != self._stop:
            raise CorruptError(
                f"the range ends at {self._stop}, but its last whole event at {self._offset}: the stream cut is not on"
                " an event boundary, or bytes are missing",
                details={"stop": self._stop, "last_boundary": self._offset},
                code="not_an_event_boundary",
            )

    def _carry(self, rest: memoryview, offset: int) -> None:
        """Keep the cut-off event. It is copied, so that it does not keep its whole window alive."""
        self._offset = offset
        self._parts = [bytes(rest)] if rest else []
        self._held_bytes = len(rest)
        self._needed_bytes = EVENT_HEADER_BYTES
        if len(rest) >= EVENT_HEADER_BYTES:
            payload_bytes: int = _HEADER.unpack_from(rest)[1]
            self._needed_bytes += payload_bytes
            self._check_length(payload_bytes)

    def _check_length(self, payload_bytes: int) -> None:
        left = self._stop - self._offset - EVENT_HEADER_BYTES
        if payload_bytes > min(left, EVENT_BYTES_READ_MAX):
            raise CorruptError(
                f"the event at offset {self._offset} says it has {payload_bytes} bytes, but the range has {left} more"
                f" and {EVENT_BYTES_READ_MAX} is the most that is read: the stream cut is not on an event boundary, or"
                " the segment holds something else than events",
                details={"offset": self._offset, "length_bytes": payload_bytes, "left_bytes": left},
                code="not_an_event_boundary",
            )


def assemble_events(windows: Iterable[Buffer], start: int, stop: int) -> Iterator[EventColumns]:
    """The events of the segment range `[start, stop)`, whose bytes are the concatenated `windows`.

    Raises:
        CorruptError: as `EventAssembler`.
    """
    assembler = EventAssembler(start, stop)
    for window in windows:
        columns = assembler.feed(window)
        if columns is not None:
            yield columns
    assembler.finish()
