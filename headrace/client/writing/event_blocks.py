"""Blocks of framed events for one segment.

These classes are not thread-safe: `BatchAccumulator` guards all of them with its lock. What adds to a block makes no
call between its first and its last change, so that an interrupt leaves no half of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, Protocol

from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.elapsed_time import Moment
from headrace.codec.events import event_header, split_events
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_HEADER_BYTES

_HEADERS_KEPT_BELOW_BYTES = 4096


class _EventHeaders(dict[int, bytes]):
    """The header of an event by its length. Headers of short events are cached, because most events are short."""

    def __missing__(self, length_bytes: int) -> bytes:
        header = event_header(length_bytes)
        if length_bytes < _HEADERS_KEPT_BELOW_BYTES:
            self[length_bytes] = header
        return header


EVENT_HEADERS = _EventHeaders()


def is_large(framed_bytes: int) -> bool:
    """Whether an event of this size, with its header, is too large for one append."""
    return framed_bytes > EVENT_BYTES_MAX + EVENT_HEADER_BYTES


class EventKeys(Protocol):
    """The routing keys of several consecutive events, in less memory than a list of them."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str | None]: ...


class Block:
    """Events that are appended together.

    `parts` are headers and events in turn, whole runs of framed events, or bytes that are not events. `keys` has an
    entry per event, or one per run. Events written one by one share `acks[0]`. `sent_at` is the time of the first
    attempt to send it.
    """

    __slots__ = ("acks", "data", "keys", "last_number", "parts", "run_events", "sent_at", "size_bytes")

    def __init__(self, ack: Ack) -> None:
        self.parts: list[bytes | bytearray | memoryview] = []
        self.keys: list[str | EventKeys | None] = []
        self.run_events = 0
        """By how much `keys` is shorter than the number of events."""
        self.size_bytes = 0
        self.acks = [ack]
        self.data: bytes | None = None
        self.last_number = 0
        self.sent_at = Moment()

    @property
    def count(self) -> int:
        """The number of events."""
        return len(self.keys) + self.run_events

    def extend(self, events: Sequence[bytes], keys: Sequence[str | None], lengths: Sequence[int]) -> None:
        parts: list[bytes | memoryview] = [b""] * (2 * len(events))
        parts[::2] = map(EVENT_HEADERS.__getitem__, lengths)
        parts[1::2] = events
        size_bytes = sum(lengths) + EVENT_HEADER_BYTES * len(events)
        self.parts += parts
        self.keys += keys
        self.size_bytes += size_bytes

    def extend_framed(self, framed: memoryview, keys: EventKeys) -> None:
        """Adds a run of events that have their headers."""
        events, size_bytes = len(keys), len(framed)
        self.parts += (framed,)
        self.keys += (keys,)
        self.run_events += events - 1
        self.size_bytes += size_bytes

    def extend_bytes(self, data: memoryview) -> None:
        """Adds bytes that are not events. All of them together count as one event."""
        growing = self.parts[0] if self.parts else bytearray()
        assert isinstance(growing, bytearray), "a block holds either events or bytes"
        size_bytes = len(data)
        growing += data  # small parts would take more memory than their bytes
        if not self.keys:
            self.parts, self.keys = [growing], [None]
        self.size_bytes += size_bytes

    @property
    def is_large(self) -> bool:
        """Whether the block is too large for one append. It then holds a single event and is never sealed."""
        return is_large(self.size_bytes)

    def seal(self) -> bytes:
        """Returns the data of the append. The block takes no more events, and frees the memory of the single ones."""
        if self.data is None:
            self.data = b"".join(self.parts)
            self.parts = []
        return self.data

    def events(self) -> list[bytes]:
        """Returns the events without their headers. The block takes no more events."""
        return [bytes(self.parts[1])] if self.is_large else split_events(self.seal(), 0)[0]

    def event_keys(self) -> Iterator[str | None]:
        """Yields the routing key of each event."""
        for key in self.keys:
            if key is None or isinstance(key, str):
                yield key
            else:
                yield from key


class EventRun(Protocol):
    """Consecutive events for one segment that are not in blocks yet: at least one.

    `size_bytes` is their size with their headers.
    """

    @property
    def count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def ends(self) -> Sequence[Any]:
        """Where each event ends if all stand one after the other with their headers, in bytes; integers of any kind."""
        ...

    def fill(self, block: Block, first: int, last: int) -> None:
        """Adds the events `[first, last)` to a block."""
        ...


class ListedEvents:
    """A run of events that are Python objects."""

    __slots__ = ("_events", "_keys", "_lengths", "count", "size_bytes")

    def __init__(self, events: Sequence[bytes], keys: Sequence[str | None]) -> None:
        self._events, self._keys = events, keys
        self._lengths = list(map(len, events))
        self.count = len(events)
        self.size_bytes = sum(self._lengths) + EVENT_HEADER_BYTES * self.count

    @property
    def ends(self) -> Sequence[int]:
        return list(accumulate(map(EVENT_HEADER_BYTES.__add__, self._lengths)))

    def fill(self, block: Block, first: int, last: int) -> None:
        block.extend(self._events[first:last], self._keys[first:last], self._lengths[first:last])


class Wants(IntEnum):
    """The event for which a segment's appender wants to be woken."""

    NOTHING = 0
    FULL_BLOCK = 1
    ANY_EVENT = 2


class SegmentQueue:
    """The blocks that wait for one segment: `ready` holds full ones in order, `open` is being filled."""

    __slots__ = ("open", "ready", "segment_id", "wake", "wants")

    def __init__(self, segment_id: int, first: Block, wake: Callable[[], object]) -> None:
        """`wake` is called from any thread, and makes the appender look for blocks."""
        self.segment_id = segment_id
        self.open = first
        self.ready: deque[Block] = deque()
        self.wants = Wants.ANY_EVENT
        self.wake = wake

    def waiting_events(self) -> int:
        """The number of events that no appender has taken."""
        return sum(block.count for block in self.ready) + self.open.count
