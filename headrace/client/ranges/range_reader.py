"""Reads the events of one segment range, in any process.

The bytes are requested in a thread of the reader: requests to S3 and to the stores that block cost a fraction of the
processor time of asynchronous ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from headrace.client.ownership import Ownership
from headrace.client.ranges.range_bytes import (
    HistorySource,
    RangeBytes,
    StreamRanges,
    Window,
    gathered,
    read_ahead_thread,
)
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.client.reading.event_reader import AnyBatch, Assemble, EventRead, arrow_assembler, events_of
from headrace.client.reading.object_iterators import AsyncEventIterator, AsyncObjectIterator
from headrace.client.reading.object_reads import ObjectReads
from headrace.client.reading.read_progress import ReadProgress
from headrace.client.reading.segment_stream import (
    ArrowBatch,
    Assembler,
    EventBatch,
    EventBatches,
    check_ends_between_events,
)
from headrace.model.arguments import checked_calls
from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError, TruncatedError
from headrace.model.names import segment_name

if TYPE_CHECKING:
    import pyarrow as pa


CLOSE_TIMEOUT_S = 5.0

T = TypeVar("T")
Batch = TypeVar("Batch", EventBatch, ArrowBatch)


@checked_calls("returned", "take")
class AsyncRangeReader:
    """Reads the events of a segment range once. Open it with `AsyncHeadrace.range_reader`, use it with `async with`.

    Every method that reads raises:
        TruncatedError: events of the range were truncated since it was listed.
        CorruptError: the range does not begin and end between two events.
        UnavailableError: the segment's store or S3 could not be reached for too long.

    Calls wait for each other; iterate in one place at a time. Bytes are requested by a thread of its own while the
    caller works on the last ones. A call that is cancelled loses nothing.
    """

    def __init__(
        self,
        source: StreamRanges,
        part: SegmentRange,
        read_history_from: HistorySource = "s3",
    ) -> None:
        if not 0 <= part.start <= part.end:
            raise InvalidRequestError(f"[{part.start}, {part.end}) is not a range of bytes")
        if read_history_from not in ("s3", "segment_store"):
            raise InvalidRequestError(f'read_history_from is "s3" or "segment_store", not {read_history_from!r}')
        self._source = source
        self._part = part
        self._use_links = read_history_from == "s3"
        self._assemble: Assemble | None = None
        self._reading: _ReadAhead | None = None
        self._reached = part.start
        self._thread = read_ahead_thread()
        self._stopped = Event()
        self._turn = asyncio.Lock()
        self._ownership = Ownership()
        self._unreturned: Iterator[EventRead] = iter(())
        self.progress = ReadProgress({part.segment_id: part.start})

    @property
    def closed(self) -> bool:
        return self._stopped.is_set()

    @property
    def unread(self) -> SegmentRange:
        """The part of the range that was not returned yet. Another reader can continue there, in any process."""
        return replace(self._part, start=self.progress.offsets[self._part.segment_id])

    async def read_batch(self) -> EventBatch | None:
        """Returns the next events, None at the end of the range. This is faster than iterating over single events.

        Raises:
            IllegalStateError: the reader has already returned Arrow batches, or is closed.
        """
        return self.returned(await self.next_events())

    async def read_arrow_batch(self) -> pa.RecordBatch | None:
        """Returns the next events as a `pyarrow.RecordBatch` (extra `headrace[arrow]`), None at the end of the range.

        Its columns are `segment_id` and `offset` (int64), and `event` (large binary).

        Raises:
            InvalidRequestError: pyarrow is not installed.
            IllegalStateError: the reader has already returned events in another form, or is closed.
        """
        batch = self.returned(await self.next_arrow_batch())
        return None if batch is None else batch.events

    def arrow_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yields Arrow batches up to the end of the range. See `read_arrow_batch`."""
        return AsyncObjectIterator(self.read_arrow_batch)

    def __aiter__(self) -> AsyncIterator[EventRead]:
        """Yields single events up to the end of the range, and moves `unread` past each."""
        self._unreturned = iter(())
        return AsyncEventIterator(self)

    async def next_events(self) -> EventBatch | None:
        """Returns the next events. They are returned again unless the caller moves `progress` past them."""
        self._unreturned = iter(())
        batch = await self._next(EventBatches)
        assert not isinstance(batch, ArrowBatch), "the assembler makes batches of events"
        return batch

    async def next_arrow_batch(self) -> ArrowBatch | None:
        """As `next_events`, for `read_arrow_batch`."""
        batch = await self._next(arrow_assembler())
        assert not isinstance(batch, EventBatch), "the assembler makes Arrow batches"
        return batch

    def returned(self, batch: Batch | None) -> Batch | None:
        """Moves `progress` past a batch. Returns it."""
        if batch is not None:
            self.progress.advance(batch.segment_id, batch.end_offset)
        return batch

    def take(self, batch: Batch | None) -> bool:
        """As `returned`. False if another thread has taken the events of the batch."""
        if batch is None:
            return True
        return self.progress.advance_from(batch.segment_id, batch.offset, batch.end_offset)

    async def close(self) -> None:
        """Stops reading and closes the connections. `unread` keeps its value. A second call does nothing.

        A call that waits raises IllegalStateError. A request that runs is waited for, at most 5 s. After that its
        thread closes the connections, when it is answered or has failed.
        """
        if self.closed:
            return
        if self._ownership.has_gone():
            self._stopped.set()
            return
        self._stopped.set()
        self._stop_reading()
        last = self._thread.submit(self._source.close)
        self._thread.shutdown(wait=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await _wait(last, asyncio.Event())

    async def __aenter__(self) -> AsyncRangeReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _following(self) -> Iterator[EventRead] | None:
        """The events of the next batch; None at the end of the range."""
        batch = await self.next_events()
        return None if batch is None else events_of(batch, self.progress)

    async def _next(self, assemble: Assemble) -> AnyBatch | None:
        self._ownership.check()
        async with self._turn:
            return await self._next_batch(assemble)

    async def _next_batch(self, assemble: Assemble) -> AnyBatch | None:
        if self.closed:
            raise _reader_closed()
        if self._assemble not in (None, assemble):
            raise IllegalStateError(
                "a reader returns either Arrow batches or events: open another reader for the range `unread`"
            )
        self._assemble = assemble
        part = self.unread
        if self._reached != part.start:
            self._stop_reading()  # a caller has iterated over a part of the last batch, and stopped
        if self._reading is None:
            self._reached = part.start
            self._reading = _ReadAhead(self._thread, self._windows(part), assemble(part.segment_id, part.start))
        name = segment_name(part.scope, part.stream, part.segment_id)
        try:
            batch = await self._reading.next_batch(name)
        except NotFoundError as error:
            self._stop_reading()
            raise TruncatedError(
                f"segment {name} was deleted with its events; list the ranges from the head of the stream",
                details={"segment": name},
            ) from error
        except Exception:
            self._stop_reading()  # the next call reads on from `unread`
            raise
        if batch is not None:
            self._reached = batch.end_offset
        return batch

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.stop()
            self._reading = None

    def _windows(self, part: SegmentRange) -> Generator[Window, None, None]:
        """Runs in the thread."""
        with (
            closing(ObjectReads()) as objects,
            RangeBytes(self._source, objects, wait=self._pause, use_links=self._use_links) as reader,
        ):
            yield from gathered(reader.windows(part.segment_id, part.start, part.end))

    def _pause(self, seconds: float) -> None:
        """Runs in the thread, before it tries again. Raises IllegalStateError if the reader is closed."""
        if self._stopped.wait(seconds):
            raise _reader_closed()


class _ReadAhead:
    """Batches of a range. While the caller works on one, the thread requests the bytes of the next."""

    def __init__(
        self, thread: ThreadPoolExecutor, windows: Generator[Window, None, None], assembler: Assembler[AnyBatch]
    ) -> None:
        self._thread = thread
        self._windows = windows
        self._assembler = assembler
        self._coming = thread.submit(next, windows, None)
        self._is_stopped = False
        self._woken = asyncio.Event()

    async def next_batch(self, name: str) -> AnyBatch | None:
        """Returns the next batch, None at the end. Can be cancelled: the window that was waited for is kept."""
        while True:
            self._woken = asyncio.Event()
            await _wait(self._coming, self._woken)
            if self._is_stopped:
                raise _reader_closed()
            window = self._coming.result()
            if window is None:
                check_ends_between_events(name, self._assembler)
                return None
            self._coming = self._thread.submit(next, self._windows, None)
            if (batch := self._assembler.add(memoryview(window))) is not None:
                return batch

    def stop(self) -> None:
        """The thread closes the connections when the request that runs is done. This does not wait for it."""
        self._is_stopped = True
        self._woken.set()
        self._coming.cancel()
        self._thread.submit(self._windows.close)


async def _wait(future: Future[T], woken: asyncio.Event) -> None:
    """Waits until the future is done or the event is set. If the waiting is cancelled, the future goes on."""
    loop = asyncio.get_running_loop()

    def wake(_: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(woken.set)

    future.add_done_callback(wake)
    await woken.wait()


def _reader_closed() -> IllegalStateError:
    return IllegalStateError("the reader is closed; make a new one", code="reader_closed")
