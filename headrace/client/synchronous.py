"""Event writer and event reader for programs without an event loop. Thread-safe unless said otherwise.

Writers pack events in the thread that writes; everything else runs on one background thread per `Headrace`. These
classes are written by hand, because an event must not cost a change of threads. `make synchronous` generates all other
synchronous classes from the asynchronous ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

from headrace.client.event_blocks import Ack
from headrace.client.event_packer import EventPacker
from headrace.client.event_reader import AsyncEventReader, EventRead, events_of
from headrace.client.event_writer import (
    BATCH_SLICE_EVENTS,
    Event,
    RoutingKeys,
    WriterCore,
    checked_batch,
    closed_error,
    event_bytes,
)
from headrace.client.loop_thread import LoopThread
from headrace.client.segment_stream import EventBatch
from headrace.client.time_windows import TimeWindow
from headrace.client.transactional_writer import AsyncTransaction, transaction_event
from headrace.model.errors import UnavailableError
from headrace.model.stream_cuts import StreamCut


class EventWriter:
    """Writes events to a stream; make it with `Headrace.writer`, use it with `with`.

    `write` returns at once with an acknowledgement that many events share; `flush` waits for all of them. Leaving the
    `with` block flushes and closes; leaving it with an exception closes without waiting.
    """

    def __init__(self, thread: LoopThread, core: WriterCore) -> None:
        self._thread = thread
        self._core = core
        self._packer = core.packer
        self._add = core.packer.add
        self.closed = False

    def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event; waits only while the buffer is full.

        Raises:
            InvalidRequestError: code "event_too_large", or the event is no bytes.
            HeadraceError: what ended the writer, for example SealedError.
        """
        if type(event) is not bytes:
            event = event_bytes(event)
        while (ack := self._add(event, routing_key)) is None:
            self._packer.wait_for_room()
        return ack

    def write_batch(self, events: Iterable[Event], routing_keys: RoutingKeys = None) -> Ack:
        """Queues many events, at a fraction of the cost of as many calls of `write`; waits while the buffer is full.

        `routing_keys` is one for each event, one for all of them, or None. Raises as `write`, before anything is
        queued where the events themselves are wrong.
        """
        payloads, keys = checked_batch(events, routing_keys)
        ack = self._packer.new_ack()
        for first in range(0, len(payloads), BATCH_SLICE_EVENTS):
            last = first + BATCH_SLICE_EVENTS
            while not self._packer.add_batch(payloads[first:last], keys[first:last], ack):
                self._packer.wait_for_room()
        self._packer.settle(ack)
        return ack

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every event written is acknowledged as durable.

        Raises:
            UnavailableError: `timeout_s` has passed; the events are still tried.
            HeadraceError: what ended the writer, if something did: some events were not acknowledged.
        """
        _flush(self._packer, timeout_s)

    def note_time(self, time: int) -> None:
        """As `AsyncEventWriter.note_time`."""
        self.flush()
        self._thread.run(self._core.note_time(time))

    def close(self) -> None:
        """Flushes, then lets go of the connections; raises as `flush`. Closing again does nothing."""
        if self.closed:
            return
        try:
            if self._packer.failure is None:
                self.flush()
                self._thread.run(self._core.shut_down())
        finally:
            self._leave()

    @property
    def acknowledged_events(self) -> int:
        """How many events are known to be durable."""
        return self._packer.acknowledged_events

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
        self.closed = True
        self._thread.run(self._core.close(closed_error()))


class TransactionEvents:
    """The part of `Transaction` that writes events; the rest of it is generated."""

    def __init__(self, transaction: AsyncTransaction) -> None:
        self._packer = transaction.packer

    def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event; waits only while the buffer is full.

        Raises:
            InvalidRequestError: code "event_too_large": a transaction takes events of up to 8 MiB.
            IllegalStateError: code "transaction_aborted" or "transaction_committed".
        """
        payload = transaction_event(event)
        while (ack := self._packer.add(payload, routing_key)) is None:
            self._packer.wait_for_room()
        return ack

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every event written is durable.

        Raises:
            UnavailableError: `timeout_s` has passed; the events are still tried.
            HeadraceError: what ended the transaction, if something did.
        """
        _flush(self._packer, timeout_s)


class EventReader:
    """Reads events of a stream; make it with `Headrace.reader`, use it with `with`. For one thread at a time."""

    def __init__(self, thread: LoopThread, reader: AsyncEventReader) -> None:
        self._thread = thread
        self._reader = reader
        self.closed = False

    def read_batch(self, timeout_s: float | None = None) -> EventBatch | None:
        """The next events of some segment; None when `timeout_s` has passed, and when `ended`. The fast way to read.

        Raises:
            TruncatedError: events to be read are gone, and not `on_truncation="skip"`.
            UnavailableError: a segment's store could not be reached for too long.
            CorruptError: a segment does not hold events where it should.
        """
        return self._thread.run(self._reader.read_batch(timeout_s))

    def __iter__(self) -> Iterator[EventRead]:
        """Event after event; `position` is behind the last one. Waits at the tail; ends when `ended`."""
        while (unread := self._thread.run(self._reader.next_unread(None))) is not None:
            yield from events_of(*unread)

    @property
    def ended(self) -> bool:
        """Everything was read: up to the end cut, or to the end of a sealed stream."""
        return self._reader.ended

    @property
    def position(self) -> StreamCut:
        """Behind the last event handed out: a reader that starts here goes on without gap and repetition."""
        return self._reader.position

    def time_window(self) -> TimeWindow:
        """As `AsyncEventReader.time_window`."""
        return self._thread.run(self._reader.time_window())

    def close(self) -> None:
        """Stops reading. `position` stays. Closing again does nothing."""
        if not self.closed:
            self.closed = True
            self._thread.run(self._reader.close())

    def __enter__(self) -> EventReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _flush(packer: EventPacker, timeout_s: float | None) -> None:
    if not packer.wait_until_empty(timeout_s):
        raise UnavailableError(f"not every event was acknowledged within {timeout_s} s; they are still tried")
    if packer.failure is not None:
        raise packer.failure
