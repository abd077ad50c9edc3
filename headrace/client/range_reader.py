"""Reads the events of one segment range, in any process. For threads without an event loop."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import wait
from contextlib import closing
from dataclasses import replace
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING

from headrace.client.event_reader import AnyBatch, Assemble, EventRead, arrow_assembler, events_of
from headrace.client.object_reads import ObjectReads
from headrace.client.range_bytes import HistorySource, RangeBytes, Window, gathered, one_ahead, read_ahead_thread
from headrace.client.read_progress import ReadProgress
from headrace.client.segment_ranges import SegmentRange
from headrace.client.segment_stream import ArrowBatch, Assembler, EventBatch, EventBatches, check_ends_between_events
from headrace.client.stream_ranges import StreamRanges
from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError, TruncatedError
from headrace.model.names import segment_name

if TYPE_CHECKING:
    import pyarrow as pa


CLOSE_TIMEOUT_S = 5.0


class RangeReader:
    """Reads the events of a segment range once. Open it with `Headrace.range_reader`, use it with `with`.

    Every method that reads raises:
        TruncatedError: events of the range were truncated since it was listed.
        CorruptError: the range does not begin and end between two events.
        UnavailableError: the segment's store or S3 could not be reached for too long.

    Not thread-safe. Bytes are requested by a thread of its own while the caller works on the last ones.
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
        self._batches: Generator[AnyBatch, None, None] | None = None
        self._progress = ReadProgress({part.segment_id: part.start})
        self._reached = part.start
        self._thread = read_ahead_thread()
        self._stopped = Event()
        self.closed = False

    @property
    def unread(self) -> SegmentRange:
        """The part of the range that was not returned yet. Another reader can continue there, in any process."""
        return replace(self._part, start=self._progress.offsets[self._part.segment_id])

    def read_batch(self) -> EventBatch | None:
        """Returns the next events, None at the end of the range. This is faster than iterating over single events.

        Raises:
            IllegalStateError: the reader has already returned Arrow batches, or is closed.
        """
        batch = self._next(EventBatches)
        assert not isinstance(batch, ArrowBatch), "the assembler makes batches of events"
        if batch is not None:
            self._progress.advance(batch.segment_id, batch.end_offset)
        return batch

    def read_arrow_batch(self) -> pa.RecordBatch | None:
        """Returns the next events as a `pyarrow.RecordBatch` (extra `headrace[arrow]`), None at the end of the range.

        Its columns are `segment_id` and `offset` (int64), and `event` (large binary).

        Raises:
            InvalidRequestError: pyarrow is not installed.
            IllegalStateError: the reader has already returned events in another form, or is closed.
        """
        batch = self._next(arrow_assembler())
        if batch is None:
            return None
        assert isinstance(batch, ArrowBatch), "the assembler makes Arrow batches"
        self._progress.advance(batch.segment_id, batch.end_offset)
        return batch.events

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches up to the end of the range. See `read_arrow_batch`."""
        while (batch := self.read_arrow_batch()) is not None:
            yield batch

    def __iter__(self) -> Iterator[EventRead]:
        """Yields single events up to the end of the range, and moves `unread` past each."""
        while (batch := self._next(EventBatches)) is not None:
            assert isinstance(batch, EventBatch), "the assembler makes batches of events"
            yield from events_of(batch, self._progress)

    def close(self) -> None:
        """Stops reading and closes the connections. `unread` keeps its value. A second call does nothing.

        It waits for a request that runs for at most 5 s. After that the thread of the request closes the connections,
        when it is answered or has failed.
        """
        if self.closed:
            return
        self.closed = True
        self._stopped.set()
        if self._batches is not None:
            self._batches.close()
        last = self._thread.submit(self._source.close)
        self._thread.shutdown(wait=False)
        wait([last], CLOSE_TIMEOUT_S)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, assemble: Assemble) -> AnyBatch | None:
        if self.closed:
            raise IllegalStateError("the reader is closed; make a new one", code="reader_closed")
        if self._assemble not in (None, assemble):
            raise IllegalStateError(
                "a reader returns either Arrow batches or events: open another reader for the range `unread`"
            )
        self._assemble = assemble
        part = self.unread
        if self._batches is not None and self._reached != part.start:
            self._batches.close()  # a caller has iterated over a part of the last batch, and stopped
            self._batches = None
        if self._batches is None:
            self._batches = self._read(part, assemble(part.segment_id, part.start))
        try:
            batch = next(self._batches, None)
        except BaseException:
            self._batches = None  # the next call reads on from `unread`
            raise
        if batch is not None:
            self._reached = batch.end_offset
        return batch

    def _read(self, part: SegmentRange, assembler: Assembler[AnyBatch]) -> Generator[AnyBatch, None, None]:
        name = segment_name(part.scope, part.stream, part.segment_id)
        try:
            with closing(one_ahead(self._windows(part), self._thread)) as windows:
                for window in windows:
                    if (batch := assembler.add(memoryview(window))) is not None:
                        yield batch
        except NotFoundError as error:
            raise TruncatedError(
                f"segment {name} was deleted with its events; list the ranges from the head of the stream",
                details={"segment": name},
            ) from error
        check_ends_between_events(name, assembler)

    def _windows(self, part: SegmentRange) -> Generator[Window, None, None]:
        """Runs in the thread."""
        with (
            closing(ObjectReads()) as objects,
            RangeBytes(self._source, objects, wait=self._stopped.wait, use_links=self._use_links) as reader,
        ):
            yield from gathered(reader.windows(part.segment_id, part.start, part.end))
