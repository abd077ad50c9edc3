"""The synchronous API for writing and reading events. The classes are thread-safe unless they say otherwise.

Events are accumulated in the thread that writes them; everything else runs on one background thread per `Headrace`.
These classes are written by hand, because a change of threads per event would be too slow. `make synchronous` generates
all other synchronous classes from the asynchronous ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace.client.closing import handle_text
from headrace.client.groups.group_reader import AsyncGroupReader, GroupBatch, GroupEvent
from headrace.client.loop_thread import LoopCaller
from headrace.client.ranges.range_reader import AsyncRangeReader
from headrace.client.reading.event_reader import AsyncEventReader, EventRead, events_of
from headrace.client.reading.object_iterators import EventIterator, ObjectIterator
from headrace.client.reading.segment_stream import EventBatch
from headrace.client.reading.time_windows import TimeWindow
from headrace.client.single_segment.byte_stream import (
    AsyncByteReader,
    AsyncByteWriter,
    WritableBuffer,
    byte_view,
    writable_view,
)
from headrace.client.writing import blocking_writes
from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.batch_accumulator import too_large
from headrace.client.writing.event_writer import (
    Event,
    RoutingKeys,
    WriterCore,
    checked_batch,
    closed_error,
    event_bytes,
)
from headrace.client.writing.transactional_writer import AsyncTransaction, too_large_for_transaction, transaction_event
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_BYTES_MAX_LARGE
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    import pyarrow as pa


class EventWriter:
    """Writes events to a stream. Open it with `Headrace.writer`, use it with `with`.

    `write` returns at once with an acknowledgement, which many events share; `flush` waits for all of them. At its end
    the `with` block flushes and closes the writer; after an exception it closes the writer without waiting.

    A signal handler must not flush or close it, nor wait for an acknowledgement: it may have come during a `write`, and
    would wait for ever for the lock of that. It may raise an exception, for example SystemExit.
    """

    def __init__(self, thread: LoopCaller, core: WriterCore) -> None:
        self._thread = thread
        self._core = core
        self._accumulator = core.accumulator
        self._add = core.accumulator.add

    def __repr__(self) -> str:
        return handle_text(self, f"{self._core.scope}/{self._core.stream}", closed=self.closed)

    def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event. Waits only while the buffer is full.

        Raises:
            InvalidRequestError: code "event_too_large", or the event is not bytes-like.
            HeadraceError: the error that ended the writer, for example SealedError.
        """
        if type(event) is not bytes:
            event = event_bytes(event)
        while (ack := self._add(event, routing_key)) is None:
            self._accumulator.wait_for_room()
        return ack

    def write_batch(self, events: Iterable[Event], routing_keys: RoutingKeys = None) -> Ack:
        """Queues many events, much faster than as many calls of `write`. Waits while the buffer is full.

        `routing_keys` has one key per event, or is one key for all, or None. Raises the same errors as `write`; if an
        event is invalid, no event is queued.
        """
        return blocking_writes.write_batch(self._accumulator, *checked_batch(events, routing_keys))

    def write_many(self, events: Any, routing_keys: Any = None) -> Ack:
        """Queues the events of an Arrow or numpy column. See `AsyncEventWriter.write_many`."""
        return blocking_writes.write_many(self._accumulator, events, routing_keys, EVENT_BYTES_MAX_LARGE, too_large)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all written events are durable.

        Raises:
            UnavailableError: `timeout_s` has passed; the writer still retries the events.
            HeadraceError: the error that ended the writer; some events were not acknowledged.
        """
        blocking_writes.flush(self._accumulator, timeout_s)

    def note_time(self, time: int) -> None:
        """Flushes, and records that all events written so far are before `time`, in the events' own time.

        Errors are those of `AsyncEventWriter.note_time`.
        """
        self.flush()
        self._thread.run(self._core.note_time(time))

    def close(self) -> None:
        """Flushes, then closes the connections. Raises the same errors as `flush`. A second call does nothing."""
        if self.closed:
            return
        try:
            if self._accumulator.failure is None:
                self.flush()
                self._thread.run(self._core.deregister())
        finally:
            self._leave()

    @property
    def closed(self) -> bool:
        """Whether the connections are closed. After an interrupted `close` they may be, else it can be called again."""
        return self._core.closed

    @property
    def acknowledged_events(self) -> int:
        """The number of events that are known to be durable."""
        return self._accumulator.acknowledged_events

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self.closed:
            self._leave()

    def _leave(self) -> None:
        self._thread.end(self._core.close(closed_error()))


class TransactionEvents:
    """The hand-written part of `Transaction`, which writes events. The rest is generated."""

    def __init__(self, transaction: AsyncTransaction) -> None:
        self._accumulator = transaction.accumulator

    def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event. Waits only while the buffer is full.

        Raises:
            InvalidRequestError: code "event_too_large": a transaction accepts events of up to 8 MiB.
            IllegalStateError: code "transaction_aborted" or "transaction_committed".
        """
        payload = transaction_event(event)
        while (ack := self._accumulator.add(payload, routing_key)) is None:
            self._accumulator.wait_for_room()
        return ack

    def write_batch(self, events: Iterable[Event], routing_keys: RoutingKeys = None) -> Ack:
        """Queues many events. See `AsyncTransaction.write_batch`."""
        checked = checked_batch(events, routing_keys, EVENT_BYTES_MAX, too_large_for_transaction)
        return blocking_writes.write_batch(self._accumulator, *checked)

    def write_many(self, events: Any, routing_keys: Any = None) -> Ack:
        """Queues the events of an Arrow or numpy column. See `AsyncTransaction.write_many`."""
        return blocking_writes.write_many(
            self._accumulator, events, routing_keys, EVENT_BYTES_MAX, too_large_for_transaction
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all written events are durable.

        Raises:
            UnavailableError: `timeout_s` has passed; the writer still retries the events.
            HeadraceError: the error that ended the transaction.
        """
        blocking_writes.flush(self._accumulator, timeout_s)


class EventReader:
    """Reads the events of a stream. Open it with `Headrace.reader`, use it with `with`. Not thread-safe.

    It moves `position` in the thread of the caller, at the end of a call: a batch that arrives when a KeyboardInterrupt
    ends the wait for it is returned again.
    """

    def __init__(self, thread: LoopCaller, reader: AsyncEventReader) -> None:
        self._thread = thread
        self._reader = reader
        self._unreturned: Iterator[EventRead] = iter(())
        """Those of the newest batch, for an iterator over single events."""

    def __repr__(self) -> str:
        return handle_text(self, f"{self._reader.scope}/{self._reader.stream}", closed=self.closed)

    def read_batch(self, timeout_s: float | None = None) -> EventBatch | None:
        """Returns the next events of one segment. None when `timeout_s` has passed, or when `ended` is true.

        This is faster than iterating over single events.

        Raises:
            TruncatedError: unread events have been truncated, and `on_truncation` is "error".
            NotFoundError: the stream was deleted.
            UnavailableError: a segment's store could not be reached for too long.
            CorruptError: a segment does not contain valid events.
        """
        self._unreturned = iter(())
        return self._reader.returned(self._thread.run(self._reader.next_events(timeout_s)))

    def read_arrow_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """Returns the next events of a segment as a record batch. See `AsyncEventReader.read_arrow_batch`."""
        batch = self._reader.returned(self._thread.run(self._reader.next_arrow_batch(timeout_s)))
        return None if batch is None else batch.events

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches until `ended` is true. See `AsyncEventReader.read_arrow_batch`."""
        return ObjectIterator(self.read_arrow_batch)

    def __iter__(self) -> Iterator[EventRead]:
        """Yields single events, and moves `position` past each. Waits at the tail; stops when `ended` is true."""
        self._unreturned = iter(())
        return EventIterator(self)

    def _following(self) -> Iterator[EventRead] | None:
        """Reads the next batch. Returns its events, None at the end."""
        batch = self._thread.run(self._reader.next_events(None))
        return None if batch is None else events_of(batch, self._reader.progress)

    @property
    def ended(self) -> bool:
        """Whether all events were read, up to the end cut or to the end of a sealed stream."""
        return self._reader.ended

    @property
    def position(self) -> StreamCut:
        """The cut after the last returned event. A reader that starts here continues without gaps and duplicates."""
        return self._reader.position

    def time_window(self) -> TimeWindow:
        """Returns the bounds of the event times at `position`, from the times that writers have noted (`note_time`).

        Errors are those of `AsyncEventReader.time_window`.
        """
        return self._thread.run(self._reader.time_window())

    def close(self) -> None:
        """Stops reading. `position` keeps its value. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._reader.close())

    @property
    def closed(self) -> bool:
        """Whether reading has stopped. After an interrupted `close` it may have, else it can be called again."""
        return self._reader.closed

    def __enter__(self) -> EventReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class GroupEvents:
    """The hand-written part of `GroupReader`. It takes batches in the thread of the caller, at the end of a call: one
    that arrives when a KeyboardInterrupt ends the wait for it is returned again. The rest is generated.
    """

    _thread: LoopCaller

    def __init__(self, reader: AsyncGroupReader) -> None:
        self._reader = reader
        self._unreturned: Iterator[GroupEvent] = iter(())

    def read_batch(self, timeout_s: float | None = None) -> GroupBatch | None:
        """Returns the next events of one segment. See `AsyncGroupReader.read_batch`."""
        self._unreturned = iter(())
        return self._reader.returned(self._thread.run(self._reader.next_events(timeout_s)))

    def __iter__(self) -> Iterator[GroupEvent]:
        """Yields single events. Waits at the tail; stops when `ended` is true."""
        self._unreturned = iter(())
        return EventIterator(self)

    def _following(self) -> Iterator[GroupEvent] | None:
        """Reads the next batch. Returns its events, None at the end."""
        arrived = self._thread.run(self._reader.next_events(None))
        return None if arrived is None else self._reader.events_of(arrived)

    def read_arrow_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """Returns the next events of a segment as a record batch. See `AsyncGroupReader.read_arrow_batch`."""
        return self._reader.returned_arrow(self._thread.run(self._reader.next_arrow_batch(timeout_s)))

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches until `ended` is true. See `AsyncGroupReader.read_arrow_batch`."""
        return ObjectIterator(self.read_arrow_batch)


class RangeEvents:
    """The hand-written part of `RangeReader`. It moves `unread` in the thread of the caller: a batch that a
    KeyboardInterrupt keeps from it is returned again. It moves it behind the lock, whose release can be interrupted,
    so another thread may have taken the batch. The rest is generated.
    """

    _thread: LoopCaller

    def __init__(self, reader: AsyncRangeReader) -> None:
        self._reader = reader
        self._unreturned: Iterator[EventRead] = iter(())
        self._turn = threading.Lock()

    def read_batch(self) -> EventBatch | None:
        """Returns the next events, None at the end of the range. See `AsyncRangeReader.read_batch`."""
        self._unreturned = iter(())
        self._thread.check_process()
        while True:
            with self._turn:
                batch = self._thread.run(self._reader.next_events())
            if self._reader.take(batch):
                return batch

    def __iter__(self) -> Iterator[EventRead]:
        """Yields single events up to the end of the range, and moves `unread` past each."""
        self._unreturned = iter(())
        return EventIterator(self)

    def _following(self) -> Iterator[EventRead] | None:
        """Reads the next batch. Returns its events, None at the end."""
        batch = self._thread.run(self._reader.next_events())
        return None if batch is None else events_of(batch, self._reader.progress)

    def read_arrow_batch(self) -> pa.RecordBatch | None:
        """Returns the next events as a record batch. See `AsyncRangeReader.read_arrow_batch`."""
        self._thread.check_process()
        while True:
            with self._turn:
                batch = self._thread.run(self._reader.next_arrow_batch())
            if self._reader.take(batch):
                return None if batch is None else batch.events

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches up to the end of the range. See `AsyncRangeReader.read_arrow_batch`."""
        return ObjectIterator(self.read_arrow_batch)


class ByteWrites:
    """The hand-written part of `ByteWriter`, which collects bytes in the thread that writes them."""

    def __init__(self, writer: AsyncByteWriter) -> None:
        self._accumulator = writer.accumulator
        self._writing = threading.Lock()

    def write(self, data: Event) -> int:
        """Queues bytes of any size, and waits while the buffer is full. Returns their number.

        The bytes of one call are stored one after the other. `data` may be changed after the call. If the call raises,
        a part of the bytes may be stored.

        Raises:
            InvalidRequestError: `data` is not bytes-like.
            HeadraceError: the error that ended the writer, for example SealedError if the stream is sealed, or
                ConflictError, code "not_at_expected_offset", if another writer has written at the expected offset.
        """
        left = byte_view(data)
        count = len(left)
        self._accumulator.changed.check()
        with self._writing:
            while left:
                taken = self._accumulator.add_bytes(left)
                left = left[taken:]
                if not taken:
                    self._accumulator.wait_for_room()
        return count

    def flush(self) -> None:
        """Waits until all written bytes are durable. Raises the error that ended the writer, if any."""
        blocking_writes.flush(self._accumulator, None)

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


class ByteReads:
    """The hand-written part of `ByteReader`, which tells the classes of `io` what it can do.

    It moves the position in the thread of the caller, at the end of a call: bytes that arrive when a KeyboardInterrupt
    ends the wait for them are read again. As in `RangeEvents`, another thread may have read them.
    """

    _thread: LoopCaller

    def __init__(self, reader: AsyncByteReader) -> None:
        self._reader = reader
        self._turn = threading.Lock()

    def read(self, size: int | None = -1) -> bytes:
        """Returns at most `size` bytes: those that have arrived, but at least one. See `AsyncByteReader.read`."""
        self._thread.check_process()
        while True:
            with self._turn:
                window = self._thread.run(self._reader.next_bytes(size))
            data = window.copied()
            if self._reader.take(window):
                return data

    def readinto(self, buffer: WritableBuffer) -> int:
        """Reads bytes into a buffer, and returns their number. See `AsyncByteReader.readinto`."""
        target = writable_view(buffer)
        self._thread.check_process()
        while True:
            with self._turn:
                window = self._thread.run(self._reader.next_bytes(len(target)))
            count = len(window.data)
            target[:count] = window.data
            if self._reader.take(window):
                return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position to an offset. Returns it. See `AsyncByteReader.seek`."""
        self._thread.check_process()
        with self._turn:
            return self._thread.run(self._reader.seek(offset, whence))

    def flush(self) -> None:
        """Does nothing; `io.BufferedReader` calls it."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False
