"""Reads the operations of a container's log, joins those that were split, and checks that none is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.codec import data_frames
from headrace.model.errors import CorruptError

OPERATION_BYTES_MAX: Final = 17 << 20
"""Large enough for an append of two wire frames with its fields. A longer operation in the log means damage."""


class LoggedOperation(NamedTuple):
    """An operation and its place in the log: its first byte is at `position` of `entry`.

    `ordering` is that of the frame with its last byte.
    """

    entry: int
    position: int
    ordering: int
    content: memoryview


class FrameReader:
    """`next_sequence` is the sequence number after the last whole operation, `last_ordering` the greatest one read.

    A reader that `resumes` may start in the middle of the log. It skips the rest of an operation that began earlier.
    """

    def __init__(self, container: int, *, resumes: bool = False) -> None:
        self.next_sequence = 0
        self.last_ordering = 0
        self._container = container
        self._started = False
        self._resumes = resumes
        self._unfinished: bytearray | None = None
        self._unfinished_bytes = 0
        self._unfinished_at = (0, 0)  # entry and position

    def read(self, entry: int, payload: memoryview) -> Iterator[LoggedOperation]:
        """Read the operations that end in this entry. Entries must be passed in their order.

        The reader drops an operation whose end was never written. Its owner ended before it was durable, so no client
        got an acknowledgement.

        Raises:
            CorruptError: the entry is not a frame, or does not continue the one before.
        """
        header, content = data_frames.decode_frame(payload)
        self._check(entry, header)
        self.last_ordering = header.ordering
        position = header.continued_bytes
        if self._unfinished is not None:
            yield from self._continued(entry, header.ordering, content[:position])
        content_bytes, ordering = len(content), header.ordering
        while position < content_bytes:
            length = data_frames.decode_operation_length(content, position)
            if not 0 < length <= OPERATION_BYTES_MAX:
                raise self._corrupt(entry, f"holds an operation of {length} bytes")
            start = position + data_frames.OPERATION_LENGTH_BYTES
            position = start + length
            if position > content_bytes:
                self._unfinished = bytearray(content[start:])
                self._unfinished_bytes, self._unfinished_at = length, (entry, start)
                return
            self.next_sequence += 1
            yield LoggedOperation(entry, start, ordering, content[start:position])

    def _check(self, entry: int, header: data_frames.FrameHeader) -> None:
        continues = header.continued_bytes > 0
        if not continues:
            self._unfinished = None
        elif self._unfinished is None and self._resumes and not self._started:
            self.next_sequence = header.first_sequence
            return
        elif self._unfinished is None:
            raise self._corrupt(entry, "continues an operation whose start is missing")
        if header.ordering <= self.last_ordering:
            raise self._corrupt(entry, f"has ordering {header.ordering} behind {self.last_ordering}")
        expected = self.next_sequence + continues
        if self._started and header.first_sequence != expected:
            raise self._corrupt(entry, f"continues with operation {header.first_sequence}, expected {expected}")
        self._started = True
        self.next_sequence = header.first_sequence - continues

    def _continued(self, entry: int, ordering: int, piece: memoryview) -> Iterator[LoggedOperation]:
        unfinished = self._unfinished
        if unfinished is None or len(unfinished) + len(piece) > self._unfinished_bytes:
            raise self._corrupt(entry, "continues an operation beyond its end")
        unfinished += piece
        if len(unfinished) == self._unfinished_bytes:
            self._unfinished = None
            self.next_sequence += 1
            yield LoggedOperation(*self._unfinished_at, ordering, memoryview(unfinished))

    def _corrupt(self, entry: int, what: str) -> CorruptError:
        return CorruptError(f"entry {entry} of the log of container {self._container} {what}: operations are missing")
