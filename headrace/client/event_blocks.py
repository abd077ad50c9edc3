"""Blocks of framed events on their way to one segment, and the acknowledgements that callers hold.

Nothing here is thread-safe by itself: `EventPacker` guards it all with its one lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from enum import IntEnum
from typing import Any

from headrace.codec.events import event_header, split_events
from headrace.model.errors import UnavailableError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_HEADER_BYTES

_HEADERS_KEPT_BELOW_BYTES = 4096


class _EventHeaders(dict[int, bytes]):
    """The header of an event by its length; short ones are kept, since most events are alike."""

    def __missing__(self, length_bytes: int) -> bytes:
        header = event_header(length_bytes)
        if length_bytes < _HEADERS_KEPT_BELOW_BYTES:
            self[length_bytes] = header
        return header


EVENT_HEADERS = _EventHeaders()


class Ack:
    """The acknowledgement of one or more events: done when all of them are durable, or when that has failed.

    Cheap: all events of a block share one. Wait with `result()` in a thread, with `await` on an event loop.
    """

    __slots__ = ("_callbacks", "_changed", "_error", "_parts")

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._parts = 1
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Ack], object]] = []

    @property
    def done(self) -> bool:
        return self._parts == 0

    def exception(self) -> BaseException | None:
        """Why the events were not acknowledged; None if they were, or while it is not decided."""
        return self._error

    def result(self, timeout_s: float | None = None) -> None:
        """Returns when the events are durable.

        Raises:
            UnavailableError: `timeout_s` has passed; they may still become durable.
            HeadraceError: they will not be acknowledged, for example SealedError: the stream is sealed.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._parts == 0, timeout_s):
                raise UnavailableError(f"events were not acknowledged within {timeout_s} s; they are still tried")
        if self._error is not None:
            raise self._error

    def add_done_callback(self, callback: Callable[[Ack], object]) -> None:
        """Calls `callback(ack)` once done: on the client's own thread, where it must not block, or at once."""
        with self._changed:
            if self._parts:
                self._callbacks.append(callback)
                return
        callback(self)

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()
        self.add_done_callback(lambda _: loop.call_soon_threadsafe(finished.set))
        yield from finished.wait().__await__()
        if self._error is not None:
            raise self._error

    # What follows is for the packer, under its lock.

    def add_part(self) -> None:
        """One more block holds events of this acknowledgement."""
        self._parts += 1

    def part_done(self, error: BaseException | None = None) -> bool:
        """A block is settled; whether it was the last one."""
        if error is not None and self._error is None:
            self._error = error
        self._parts -= 1
        return self._parts == 0

    def take_callbacks(self) -> list[Callable[[Ack], object]]:
        callbacks, self._callbacks = self._callbacks, []
        return callbacks


class Block:
    """Events that are appended together. `acks[0]` is shared by the events written one by one.

    `sent_at_s` is the wall time at which it was first in flight.
    """

    __slots__ = ("acks", "data", "keys", "last_number", "parts", "sent_at_s", "size_bytes")

    def __init__(self, ack: Ack) -> None:
        self.parts: list[bytes] = []
        self.keys: list[str | None] = []
        self.size_bytes = 0
        self.acks = [ack]
        self.data: bytes | None = None
        self.last_number = 0
        self.sent_at_s = 0.0

    def extend(self, events: Sequence[bytes], keys: Sequence[str | None], lengths: Sequence[int]) -> None:
        parts: list[bytes] = [b""] * (2 * len(events))
        parts[::2] = map(EVENT_HEADERS.__getitem__, lengths)
        parts[1::2] = events
        self.parts += parts
        self.keys += keys
        self.size_bytes += sum(lengths) + EVENT_HEADER_BYTES * len(events)

    @property
    def is_large(self) -> bool:
        """Too large for one append; such a block holds a single event and stays unsealed."""
        return self.size_bytes > EVENT_BYTES_MAX + EVENT_HEADER_BYTES

    def seal(self) -> bytes:
        """The data of the append. No more events come in; the single events are let go of."""
        if self.data is None:
            self.data = b"".join(self.parts)
            self.parts = []
        return self.data

    def events(self) -> list[bytes]:
        """The events as they were written."""
        return self.parts[1::2] if self.data is None else split_events(self.data, 0)[0]


class Wants(IntEnum):
    """What a segment's appender is waiting for."""

    NOTHING = 0
    FULL_BLOCK = 1
    ANY_EVENT = 2


class SegmentQueue:
    """What is to be appended to one segment: full blocks in order, and the open one that is being filled."""

    __slots__ = ("open", "ready", "segment_id", "wake", "wants")

    def __init__(self, segment_id: int, first: Block, wake: Callable[[], object]) -> None:
        """`wake` makes the appender look, from any thread."""
        self.segment_id = segment_id
        self.open = first
        self.ready: deque[Block] = deque()
        self.wants = Wants.ANY_EVENT
        self.wake = wake
