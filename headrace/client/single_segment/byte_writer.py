"""The asynchronous API for writing bytes to a byte stream. The bytes are stored as they are, without event frames.

The bytes of one writer are stored in the order of its writes, each once, across reconnects and restarts of the segment
store. Bytes of several writers are mixed, block by block, unless they expect offsets: then all but one are refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from headrace.client.backoff import Backoff
from headrace.client.ownership import Ownership
from headrace.client.single_segment.segment_requests import ByteSegment
from headrace.client.writing.batch_accumulator import BLOCK_BYTES, BatchAccumulator
from headrace.client.writing.event_writer import Event, closed_error
from headrace.client.writing.routing_table import Route
from headrace.client.writing.segment_appender import OTHER_OFFSET, WRITER_ID_BITS, SegmentAppender
from headrace.model.arguments import checked_calls
from headrace.model.errors import ConflictError, HeadraceError, InvalidRequestError, SealedError
from headrace.model.limits import EVENT_BYTES_MAX
from headrace.model.segments import KeyRange

EXPECTING_BLOCK_BYTES = 4 * 1024 * 1024
"""The size of a full block of a writer that expects an offset. It has one block in flight, so its blocks are larger."""

assert EXPECTING_BLOCK_BYTES <= EVENT_BYTES_MAX


@checked_calls("write", "segment_replaced", "segment_failed")
class AsyncByteWriter:
    """Writes bytes to a stream of one segment. Make it with `AsyncByteStream.writer`, use it with `async with`.

    At its end the `async with` block flushes and closes the writer; after an exception it closes it without waiting.
    """

    def __init__(self, segment: ByteSegment, expected_offset: int | None, buffer_bytes: int) -> None:
        if buffer_bytes < 1:
            raise InvalidRequestError(f"a writer needs a buffer of at least one byte, not {buffer_bytes}")
        block_bytes = BLOCK_BYTES if expected_offset is None else EXPECTING_BLOCK_BYTES
        self.accumulator = BatchAccumulator(
            block_bytes=min(block_bytes, buffer_bytes),
            buffer_bytes=buffer_bytes,
            stream_name=f"{segment.scope}/{segment.stream}",
        )
        self._segment = segment
        self._expected_offset = expected_offset
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self.accumulator.listen(self._changed.set)
        self._is_closed = False
        self._ownership = Ownership()
        self._ownership.check()
        self._appender = SegmentAppender(
            self,
            segment.connections,
            self.accumulator,
            segment_id=segment.segment_id,
            segment_name=segment.name,
            writer_id=secrets.randbits(WRITER_ID_BITS),
            new_backoff=lambda: Backoff(segment.give_up_after_s),
            wake=asyncio.get_running_loop().call_soon_threadsafe,
            expected_offset=expected_offset,
        )
        self.accumulator.route([Route(KeyRange(0.0, 1.0), self._appender.queue)])

    async def open(self) -> None:
        """Checks that the stream accepts bytes at the expected offset."""
        info = await self._segment.info()
        if info.is_sealed:
            raise self._sealed()
        if self._expected_offset not in (None, info.write_offset):
            raise ConflictError(
                f"byte stream {self._segment.scope}/{self._segment.stream} ends at offset {info.write_offset}, not at "
                f"{self._expected_offset}: read on from there, or expect its tail",
                details={"expected_offset": self._expected_offset, "tail_offset": info.write_offset},
                code=OTHER_OFFSET,
            )

    async def write(self, data: Event) -> int:
        """Queues bytes of any size, and waits while the buffer is full. Returns their number.

        The bytes of one call are stored one after the other. `data` may be changed after the call. If the call is
        cancelled or raises, a part of the bytes may be stored.

        Raises:
            InvalidRequestError: `data` is not bytes-like.
            HeadraceError: the error that ended the writer, for example SealedError if the stream is sealed, or
                ConflictError, code "not_at_expected_offset", if another writer has written at the expected offset.
        """
        left = byte_view(data)
        count = len(left)
        async with self._writing:
            while left:
                taken = self.accumulator.add_bytes(left)
                left = left[taken:]
                if not taken:
                    await self._until(self.accumulator.has_room)
        return count

    async def flush(self) -> None:
        """Waits until all written bytes are durable. Raises the error that ended the writer, if any."""
        await self._until(self.accumulator.is_empty)
        if self.accumulator.failure is not None:
            raise self.accumulator.failure

    async def tail_offset(self) -> int:
        """Returns the offset after the last stored byte, in bytes. `flush` first to include all written ones."""
        return await self._segment.tail_offset()

    async def truncate_data_before(self, offset: int) -> None:
        """Removes the bytes before an offset. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: the stream ends before the offset.
            NotFoundError: the stream was deleted.
        """
        await self._segment.truncate_data_before(offset)

    async def close_and_seal(self) -> None:
        """Flushes, seals the stream so that readers find an end, and closes the writer.

        Bytes that other writers have stored before the seal stay. Raises the same errors as `flush`.
        """
        try:
            await self.flush()
            with suppress(SealedError):  # by another client, after all bytes were stored
                await self._segment.admin.seal_stream(self._segment.scope, self._segment.stream)
        finally:
            await self.discard()

    @property
    def closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Flushes, then closes the connections. Raises the same errors as `flush`. A second call does nothing."""
        if self._is_closed:
            return
        try:
            await self.flush()
        finally:
            await self.discard()

    async def __aenter__(self) -> AsyncByteWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.discard()

    # AppendOwner

    async def segment_replaced(self, appender: SegmentAppender) -> None:
        """Raises why the segment accepts no more bytes."""
        await self._segment.info()  # raises NotFoundError if it was deleted
        raise self._sealed()

    def segment_failed(self, appender: SegmentAppender, error: HeadraceError) -> None:
        """Fails the bytes in the buffer, and all later writes."""
        self.accumulator.fail(appender.queue, appender.in_flight, error)
        appender.in_flight.clear()

    async def discard(self) -> None:
        """Closes the connections at once. The outcome of bytes that are not acknowledged stays unknown."""
        if self._is_closed:
            return
        self._is_closed = True
        self.accumulator.close(closed_error())
        if self._ownership.has_gone():
            return
        ended = self._appender.stop()
        self.segment_failed(self._appender, closed_error())  # before it waits: the call may be cancelled
        try:
            await ended
        finally:
            await self._segment.close()

    def _sealed(self) -> SealedError:
        return SealedError(
            f"byte stream {self._segment.scope}/{self._segment.stream} accepts no more bytes: it is sealed, or its "
            "segment was replaced by a scale",
            details={"segment": self._segment.name},
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._ownership.check()
            self._changed.clear()
            await self._changed.wait()


def byte_view(data: Event) -> memoryview:
    """Returns the bytes of a contiguous object without a copy. Raises InvalidRequestError for anything else."""
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise InvalidRequestError(f"a byte stream takes contiguous bytes, not {type(data).__name__}") from error
