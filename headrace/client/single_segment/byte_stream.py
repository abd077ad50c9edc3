"""The asynchronous API for a stream of one segment that holds bytes instead of events (Pravega's byte stream).

Offsets are in bytes, and count from the first byte that was ever written.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType

from headrace.client.closing import close_all, exit_all_async
from headrace.client.single_segment.byte_reader import AsyncByteReader, ByteStart, check_offset
from headrace.client.single_segment.byte_writer import AsyncByteWriter
from headrace.client.single_segment.segment_requests import BYTES_RETRY_TIMEOUT_S, ByteSegment
from headrace.client.writing.batch_accumulator import BUFFER_BYTES
from headrace.model.arguments import checked_calls
from headrace.model.errors import IllegalStateError


@checked_calls()
class AsyncByteStream:
    """Opens writers and readers of one byte stream. Make it with `AsyncHeadrace.byte_stream`; use `async with`.

    Every method raises NotFoundError if the stream was deleted, and UnavailableError if its store could not be reached
    for too long.
    """

    def __init__(self, segment: ByteSegment) -> None:
        self.scope, self.stream = segment.scope, segment.stream
        self._segment = segment
        self._open: list[AsyncByteWriter | AsyncByteReader] = []
        self._is_closed = False

    async def writer(
        self,
        *,
        expected_offset: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        give_up_after_s: float = BYTES_RETRY_TIMEOUT_S,
    ) -> AsyncByteWriter:
        """Opens a writer, which appends at the tail.

        With `expected_offset` it is the only writer: the stream must end there, and each append must begin where its
        last one ended. An append of another writer ends it with ConflictError. Without, several writers can append.

        `write` waits while `buffer_bytes` are not acknowledged. After `give_up_after_s` without progress the writer
        fails with UnavailableError; whether its last bytes are stored is unknown.

        Raises:
            SealedError: the stream is sealed.
            ConflictError: code "not_at_expected_offset": the stream does not end at `expected_offset`.
            InvalidRequestError: `expected_offset` is negative, or `buffer_bytes` is not positive.
        """
        self._check_open()
        if expected_offset is not None:
            check_offset(expected_offset)
        opened = AsyncByteWriter(self._own_segment(give_up_after_s), expected_offset, buffer_bytes)
        self._keep(opened)
        try:
            await opened.open()
        except BaseException:
            await opened.discard()
            raise
        return opened

    async def reader(
        self, start: ByteStart = "head", *, give_up_after_s: float = BYTES_RETRY_TIMEOUT_S
    ) -> AsyncByteReader:
        """Opens a reader at the head, the tail, or an offset. After `give_up_after_s` without its store, reads fail.

        Raises:
            InvalidRequestError: the offset is negative.
        """
        self._check_open()
        if start == "head":
            start = await self._segment.head_offset()
        elif start == "tail":
            start = await self._segment.tail_offset()
        opened = AsyncByteReader(self._own_segment(give_up_after_s), check_offset(start))
        self._keep(opened)
        return opened

    async def head_offset(self) -> int:
        """Returns the offset of the first byte that is not truncated."""
        return await self._segment.head_offset()

    async def tail_offset(self) -> int:
        """Returns the offset after the last stored byte."""
        return await self._segment.tail_offset()

    async def truncate_data_before(self, offset: int) -> None:
        """Removes the bytes before an offset. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: the stream ends before the offset.
        """
        await self._segment.truncate_data_before(offset)

    @property
    def closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Flushes and closes all writers, and closes all readers. Raises the first error of a writer."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> AsyncByteStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        opened, self._open = self._open, []
        await close_all(partial(exit_all_async, opened, error), self._segment.close)

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalStateError("the byte stream is closed; open it again", code="byte_stream_closed")

    def _own_segment(self, give_up_after_s: float) -> ByteSegment:
        """A writer or a reader has connections of its own, so that it can be closed by itself."""
        segment = self._segment
        return ByteSegment(segment.admin, segment.scope, segment.stream, segment.segment_id, give_up_after_s)

    def _keep(self, opened: AsyncByteWriter | AsyncByteReader) -> None:
        self._open = [one for one in self._open if not one.closed] + [opened]
