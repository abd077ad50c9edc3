"""Frames: `int32 type, int32 length, payload`; and how commands get in and out of them.

`FrameReceiver` cuts a byte stream into frames without doing I/O itself, so that blocking sockets and event loops share
it. Nothing is allocated for a frame before its length was checked.
"""

from __future__ import annotations

import struct

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import WIRE_FRAME_PAYLOAD_BYTES_MAX
from headrace.wire.fields import LAYOUTS, LAYOUTS_BY_TYPE, Buffer, Sink, WireCommand, WireFormatError

FRAME_HEADER = struct.Struct(">ii")
FRAME_PAYLOAD_BYTES_MAX = WIRE_FRAME_PAYLOAD_BYTES_MAX
_STAGING_BYTES = 256 * 1024
_REUSED_BYTES_MAX = 2 * 1024 * 1024 + 4096
"""The largest payload whose buffer is reused: the reply of one read. Larger payloads are rare."""

_REUSED_BUFFERS_MAX = 3


def encode_parts(command: WireCommand) -> list[Buffer]:
    """The whole frame as buffers to send one after the other; payload data is not copied.

    Raises:
        InvalidRequestError: a value does not fit its field, or the frame would be too large.
    """
    sink = Sink()
    _write(command, sink)
    sink.flush()
    return _framed(command, sink)


def encode(command: WireCommand) -> bytes:
    """The whole frame; raises as `encode_parts`."""
    return b"".join(encode_parts(command))


def encode_joined(command: WireCommand, join_bytes_max: int) -> list[Buffer]:
    """The buffers to send: a frame of at most `join_bytes_max` bytes is one, and a longer one is as `encode_parts`."""
    parts = encode_parts(command)
    return [b"".join(parts)] if sum(map(len, parts)) <= join_bytes_max else parts


def encode_around(command: WireCommand, data_bytes: int) -> tuple[bytes, bytes]:
    """What goes before and behind `data_bytes` bytes of data that the caller sends itself, in as many parts as it has.

    `command` is one with a data field, given empty.

    Raises:
        InvalidRequestError: as `encode_parts`.
    """
    sink = _AbsentDataSink(data_bytes)
    _write(command, sink)
    sink.flush()
    head, _, tail = _framed(command, sink)
    return bytes(head), bytes(tail)


def decode(type_code: int, payload: memoryview) -> WireCommand:
    """The command in a frame's payload; data fields are views of `payload`.

    Raises:
        WireFormatError: the type code is unknown or the payload is not laid out as this type demands.
    """
    layout = LAYOUTS_BY_TYPE.get(type_code)
    if layout is None:
        raise WireFormatError(f"there is no wire command of type {type_code}", details={"type": type_code})
    command: WireCommand = layout.read(payload)
    return command


def decode_header(header: Buffer) -> tuple[int, int]:
    """Type code and payload length of the 8-byte frame header.

    Raises:
        WireFormatError: the length is negative or beyond FRAME_PAYLOAD_BYTES_MAX.
    """
    type_code, length_bytes = FRAME_HEADER.unpack_from(header)
    _check_length(length_bytes)
    return type_code, length_bytes


class FrameReceiver:
    """Cuts received bytes into frames.

    Read into `writable()`, then tell `received(n)`, which returns the frames completed by these bytes. A payload that
    was already complete in the staging buffer is copied out of it; a longer one is received straight into its own
    buffer. Payloads stay valid for as long as they are referenced; after that their buffers are used again.
    """

    __slots__ = ("_buffers", "_filled", "_large", "_large_filled", "_large_type", "_staging", "_view")

    def __init__(self) -> None:
        self._staging = bytearray(_STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._filled = 0
        self._buffers = _PayloadBuffers()
        self._large: memoryview | None = None
        self._large_type = 0
        self._large_filled = 0

    def writable(self) -> memoryview:
        """The buffer for the next received bytes; never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def received(self, count: int) -> list[tuple[int, memoryview]]:
        """Note `count` new bytes in `writable()`; return the frames that are complete as (type code, payload).

        Raises:
            WireFormatError: a frame header with an impossible length.
        """
        if self._large is None:
            self._filled += count
            return self._cut()
        self._large_filled += count
        if self._large_filled < len(self._large):
            return []
        frame = (self._large_type, self._large)
        self._large = None
        return [frame]

    @property
    def inside_frame(self) -> bool:
        """Whether the stream, if it ended now, would end in the middle of a frame."""
        return self._filled > 0 or self._large is not None

    def _cut(self) -> list[tuple[int, memoryview]]:
        frames: list[tuple[int, memoryview]] = []
        position, filled = 0, self._filled
        while filled - position >= FRAME_HEADER.size:
            type_code, length_bytes = FRAME_HEADER.unpack_from(self._staging, position)
            _check_length(length_bytes)
            start = position + FRAME_HEADER.size
            end = start + length_bytes
            if end > filled:
                if end - position > _STAGING_BYTES // 2:
                    self._receive_apart(type_code, length_bytes, start)
                    return frames
                break
            frames.append((type_code, memoryview(bytes(self._view[start:end]))))
            position = end
        if position:
            self._staging[: filled - position] = self._staging[position:filled]
            self._filled = filled - position
        return frames

    def _receive_apart(self, type_code: int, length_bytes: int, start: int) -> None:
        payload = self._buffers.take(length_bytes)
        here = self._filled - start
        payload[:here] = self._view[start : self._filled]
        self._large, self._large_type, self._large_filled = payload, type_code, here
        self._filled = 0


class _PayloadBuffers:
    """Buffers for long payloads. They are reused, because the page faults of fresh memory cost more than copying."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, length_bytes: int) -> memoryview:
        """A buffer of that length without views of it."""
        for kept in self._kept:
            if len(kept) >= length_bytes and _is_free(kept):
                return memoryview(kept)[:length_bytes]
        if length_bytes > _REUSED_BYTES_MAX:
            return memoryview(bytearray(length_bytes))
        fresh = bytearray(-(-length_bytes // _STAGING_BYTES) * _STAGING_BYTES)
        if len(self._kept) == _REUSED_BUFFERS_MAX:
            del self._kept[0]
        self._kept.append(fresh)
        return memoryview(fresh)[:length_bytes]


def _is_free(buffer: bytearray) -> bool:
    """Python refuses to resize a buffer while a memoryview of it exists."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


class _AbsentDataSink(Sink):
    """Counts data that is sent separately."""

    __slots__ = ("_data_bytes",)

    def __init__(self, data_bytes: int) -> None:
        super().__init__()
        self._data_bytes = data_bytes

    def put_counted_data(self, data: Buffer) -> None:
        self.put(struct.pack(">i", self._data_bytes))
        self.put_data(data)

    def put_data(self, data: Buffer) -> None:
        super().put_data(data)
        self.length_bytes += self._data_bytes - len(data)


def _write(command: WireCommand, sink: Sink) -> None:
    try:
        LAYOUTS[type(command)].write(command, sink)
    except (struct.error, OverflowError) as error:
        raise InvalidRequestError(f"a value of {type(command).__name__} does not fit its field: {error}") from error


def _framed(command: WireCommand, sink: Sink) -> list[Buffer]:
    if sink.length_bytes > FRAME_PAYLOAD_BYTES_MAX:
        raise InvalidRequestError(
            f"{type(command).__name__} takes {sink.length_bytes} bytes, a frame holds {FRAME_PAYLOAD_BYTES_MAX}",
            details={"bytes": sink.length_bytes, "bytes_max": FRAME_PAYLOAD_BYTES_MAX},
        )
    sink.parts[0] = FRAME_HEADER.pack(command.TYPE, sink.length_bytes) + sink.parts[0]
    return sink.parts


def _check_length(length_bytes: int) -> None:
    if not 0 <= length_bytes <= FRAME_PAYLOAD_BYTES_MAX:
        raise WireFormatError(
            f"a frame header claims {length_bytes} payload bytes, allowed are 0 to {FRAME_PAYLOAD_BYTES_MAX}",
            details={"length_bytes": length_bytes},
        )
