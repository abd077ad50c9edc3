"""Cuts the bytes of a link into messages, without copying large ones.

Bytes are received into a chunk, one message after the other. A message that does not fit in the rest of the chunk and
has 64 KiB or more gets a buffer of exactly its size; only what had arrived of it is copied. After such a message the
next receive is short, so that little is copied of the next large one. Memory that an entry refers to is never used
again: it is freed when the last view of it is gone.
"""

from __future__ import annotations

from typing import Final

from headrace.codec.replica_messages import (
    MESSAGE_BYTES_MAX,
    MESSAGE_HEADER,
    Entries,
    Entry,
    decode_message_header,
)
from headrace.model.errors import CorruptError

CHUNK_BYTES: Final = 256 << 10
LARGE_BYTES: Final = 64 << 10
SHORT_RECEIVE_BYTES: Final = 8 << 10
_ROOM_BYTES_MIN: Final = 4 << 10
_HEADER_BYTES: Final = MESSAGE_HEADER.size
_WITH_PAYLOADS: Final = frozenset((Entry.TYPE, Entries.TYPE))


class MessageAssembler:
    """One end's received bytes. It holds at most a chunk and one message of the largest size that it accepts.

    Call `writable` and `received` for each receive, then `next_message` until it returns None, before the next one.
    """

    def __init__(self, chunk_bytes: int = CHUNK_BYTES, body_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._chunk_bytes = chunk_bytes
        self._body_bytes_max = body_bytes_max
        self._chunk = memoryview(bytearray(chunk_bytes))
        self._start = self._end = 0
        self._is_lent = False
        self._is_short = False
        self._large: memoryview | None = None
        self._large_end = 0
        self.copied_bytes = 0

    def accept_large(self, chunk_bytes: int = CHUNK_BYTES, body_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """Accept larger messages from now on: the other end has proved itself."""
        self._chunk_bytes, self._body_bytes_max = chunk_bytes, body_bytes_max
        self._replace_chunk()

    @property
    def held_bytes(self) -> int:
        """The size of the current buffers."""
        return len(self._chunk) + (0 if self._large is None else len(self._large))

    def writable(self) -> memoryview:
        """The buffer for the next receive, never empty."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._start == self._end and not self._is_lent:
            self._start = self._end = 0
        # A message whose header has arrived fits in the chunk: `next_message` has seen to that.
        begins_message = self._end - self._start < _HEADER_BYTES
        if begins_message and len(self._chunk) - self._end < min(_ROOM_BYTES_MIN, self._chunk_bytes // 4):
            self._replace_chunk()
        if self._is_short:
            return self._chunk[self._end : self._end + SHORT_RECEIVE_BYTES]
        return self._chunk[self._end :]

    def received(self, count: int) -> None:
        """Take note of `count` bytes in `writable()`."""
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count

    def next_message(self) -> memoryview | None:
        """The bytes of the next whole message with its header; None if more must arrive first.

        Those of ENTRY and ENTRIES never change. Those of other messages are valid until the next `writable`.

        Raises:
            CorruptError: the type is unknown, or the message is longer than this end accepts.
        """
        if self._large is not None:
            if self._large_end < len(self._large):
                return None
            message, self._large = self._large, None
            return message
        available = self._end - self._start
        if available < _HEADER_BYTES:
            return None
        kind, length = decode_message_header(self._chunk[self._start : self._end])
        if length > self._body_bytes_max:
            raise CorruptError(
                f"a message of type {kind} claims {length} bytes, at most {self._body_bytes_max} are allowed now"
            )
        whole = _HEADER_BYTES + length
        if available >= whole:
            message = self._chunk[self._start : self._start + whole]
            self._start += whole
            self._is_lent |= kind in _WITH_PAYLOADS
            self._is_short = False
            return message
        if self._start + whole > len(self._chunk):
            self._make_room(whole)
        return None

    def _make_room(self, whole: int) -> None:
        """A message does not fit in the rest of the chunk."""
        if whole < LARGE_BYTES and whole <= self._chunk_bytes:
            self._replace_chunk()
            return
        arrived = self._end - self._start
        self._large = memoryview(bytearray(whole))
        self._large[:arrived] = self._chunk[self._start : self._end]
        self._large_end = arrived
        self._end = self._start  # the chunk's rest is not referred to, so the next message may begin there
        self._is_short = True
        self.copied_bytes += arrived

    def _replace_chunk(self) -> None:
        arrived = self._end - self._start
        chunk = memoryview(bytearray(self._chunk_bytes))
        chunk[:arrived] = self._chunk[self._start : self._end]
        self._chunk = chunk
        self._start, self._end = 0, arrived
        self._is_lent = False
        self.copied_bytes += arrived
