"""The asynchronous API for a stream of one segment that holds bytes instead of events (Pravega's byte stream).

Offsets are in bytes, and count from the first byte that was ever written.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NamedTuple

from headrace.client.administration.ends import AnyEnd, current_end
from headrace.client.backoff import Backoff
from headrace.client.closing import close_all, exit_all_async, handle_text
from headrace.client.ownership import Ownership
from headrace.client.reading.segment_stream import SegmentStream
from headrace.client.single_segment.segment_requests import BYTES_RETRY_TIMEOUT_S, ByteSegment
from headrace.client.writing.batch_accumulator import BLOCK_BYTES, BUFFER_BYTES, BatchAccumulator
from headrace.client.writing.event_writer import Event, closed_error
from headrace.client.writing.routing_table import Route
from headrace.client.writing.segment_appender import OTHER_OFFSET, WRITER_ID_BITS, SegmentAppender
from headrace.model.arguments import checked_calls
from headrace.model.errors import (
    ConflictError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    TruncatedError,
)
from headrace.model.limits import EVENT_BYTES_MAX
from headrace.model.segments import KeyRange

# The asynchronous API for writing bytes to a byte stream. The bytes are stored as they are, without event frames.
#
# The bytes of one writer are stored in the order of its writes, each once, across reconnects and restarts of the
# segment store. Bytes of several writers are mixed, block by block, unless they expect offsets: then all but one are
# refused.

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


# The asynchronous API for reading bytes of a byte stream, at any offset, up to the end of a sealed stream.
#
# The reader requests bytes in advance, and holds at most WINDOWS_WAITING_MAX windows that were not read.

WINDOW_BYTES = 1024 * 1024
WINDOWS_WAITING_MAX = 4

ByteStart = AnyEnd | int
WritableBuffer = bytearray | memoryview


class FoundBytes(NamedTuple):
    """Bytes of the stream, and the offset of the first one."""

    offset: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    def copied(self) -> bytes:
        """Returns the bytes, without a copy if they are all of an object."""
        whole = self.data.obj
        return whole if isinstance(whole, bytes) and len(whole) == len(self.data) else bytes(self.data)


_NOTHING = FoundBytes(0, memoryview(b""))


class _End:
    """Comes after the last bytes of a sealed stream."""


class _Windows:
    """Hands on each read as it is, in a copy: the buffer of the connection is used again."""

    cut_off_bytes = 0

    def __init__(self, segment_id: int, offset: int) -> None:
        self.offset = offset

    def add(self, data: memoryview) -> bytes:
        self.offset += len(data)
        return bytes(data)


@checked_calls("take")
class AsyncByteReader:
    """Reads bytes of a stream of one segment. Make it with `AsyncByteStream.reader`, use it with `async with`.

    It has the methods of a file that is open for reading. At the tail of a stream that is not sealed, `read` waits for
    bytes; at the end of a sealed one it returns none. Calls wait for each other, so do not let several tasks read.
    """

    def __init__(self, segment: ByteSegment, start: int) -> None:
        self._segment = segment
        self._position = start
        self._window = _NOTHING
        """Bytes that have arrived. Those before the position were returned."""
        self._arrives_at = start
        """The offset of the bytes that come next out of the queue, while they are requested in advance."""
        self._reading = asyncio.Lock()
        self._arrived: asyncio.Queue[bytes | _End | Exception] = asyncio.Queue(WINDOWS_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._ownership = Ownership()
        self._ownership.check()

    async def read(self, size: int | None = -1) -> bytes:
        """Returns at most `size` bytes: those that have arrived, but at least one. It waits for the first.

        Returns no bytes at the end of a sealed stream, and if `size` is 0. None or a negative `size` means all bytes up
        to that end; then it waits until the stream is sealed.

        Raises:
            TruncatedError: the byte at the position was truncated. `details["start_offset"]` is the head, to `seek` to.
            NotFoundError: the stream was deleted.
            UnavailableError: its store could not be reached for too long. The next call tries again.
        """
        async with self._reading:
            window = await self._next(size)
            data = window.copied()
            self.take(window)
            return data

    async def readinto(self, buffer: WritableBuffer) -> int:
        """Reads bytes into a buffer, at most as many as it has room for. Returns their number. Raises as `read`."""
        target = writable_view(buffer)
        async with self._reading:
            window = await self._next(len(target))
            count = len(window.data)
            target[:count] = window.data
            self.take(window)
            return count

    async def next_bytes(self, size: int | None) -> FoundBytes:
        """Returns what `read` would, and leaves the position where it is. The caller moves it with `take`."""
        async with self._reading:
            return await self._next(size)

    def take(self, window: FoundBytes) -> bool:
        """Moves the position past bytes. False if it is not before them any more, because another thread has moved it.

        From the check on it calls nothing, so that no other thread and no interrupt can come in between, and an
        interrupt that comes later does not find the position moved.
        """
        end, window_end = window.end, self._window.end
        if self._position != window.offset:
            return False
        self._position = end
        if end >= window_end:
            self._window = _NOTHING  # `read` without a size may have left very many bytes in it
        return True

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position to an offset, which may be after the tail. Returns the position.

        `offset` counts from 0 (the first byte that was ever written, also if it is truncated), with `os.SEEK_CUR` from
        the position, and with `os.SEEK_END` from the tail.

        Raises:
            InvalidRequestError: the offset would be negative, or `whence` is none of the three.
        """
        async with self._reading:
            position = self._position
            if whence == os.SEEK_CUR:
                offset += position
            elif whence == os.SEEK_END:
                offset += await self._segment.tail_offset()
            elif whence != os.SEEK_SET:
                raise InvalidRequestError(f"whence is 0, 1 or 2, not {whence}")
            check_offset(offset)
            if not 0 <= offset - position <= len(self._unread(position)):
                await self._stop()
            self._position = offset
            return offset

    async def tell(self) -> int:
        """Returns the position: the offset in bytes of the next byte to read."""
        return self._position

    async def available(self) -> int:
        """Returns how many bytes after the position are stored, so that `read` does not wait for a writer."""
        info = await self._segment.info()
        return max(0, info.write_offset - max(self._position, info.start_offset))

    async def head_offset(self) -> int:
        """Returns the offset of the first byte that is not truncated."""
        return await self._segment.head_offset()

    async def tail_offset(self) -> int:
        """Returns the offset after the last stored byte, in bytes."""
        return await self._segment.tail_offset()

    @property
    def closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Stops reading. A call that waits raises IllegalStateError. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._stop()
        finally:
            self._arrived.put_nowait(_closed())
            await self._segment.close()

    async def __aenter__(self) -> AsyncByteReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _next(self, size: int | None) -> FoundBytes:
        """The next bytes, at most `size`; none at the end. They stay the next ones until the position is moved."""
        self._ownership.check()
        if self._is_closed:
            raise _closed()
        position = self._position  # once: another thread may move it at any time
        if size is None or size < 0:
            self._window = rest = FoundBytes(position, memoryview(await self._rest(position)))
            return rest
        unread = self._unread(position)
        if size and not unread:
            unread = memoryview(await self._next_window(position))
            self._window = FoundBytes(position, unread)
        return FoundBytes(position, unread[:size])

    async def _rest(self, position: int) -> bytes:
        """All bytes from the position up to the end."""
        pieces: list[bytes | memoryview] = [self._unread(position)]
        end = position + len(pieces[0])
        try:
            while window := await self._next_window(end):
                pieces.append(window)
                end += len(window)
        except BaseException:
            await self._stop()  # the next call reads from the position
            raise
        return b"".join(pieces)

    def _unread(self, position: int) -> memoryview:
        window = self._window
        return window.data[position - window.offset :]

    async def _next_window(self, offset: int) -> bytes:
        """The bytes behind all that have arrived, which begin at `offset`; none at the end."""
        if self._is_closed:
            raise _closed()
        if self._task is not None and self._arrives_at != offset:
            await self._stop()  # another thread has moved the position over bytes that had arrived
        if self._task is None:
            self._arrives_at = offset
            self._task = asyncio.get_running_loop().create_task(self._run(offset, self._arrived))
        arrived = await self._arrived.get()
        if isinstance(arrived, bytes):
            self._arrives_at += len(arrived)
            return arrived
        await self._stop()  # the next call asks again: the stream may be truncated, or its store be back
        if isinstance(arrived, _End):
            return b""
        if isinstance(arrived, InvalidRequestError) and await self._is_after_end(offset):
            return b""
        raise self._explained(arrived, offset)

    async def _run(self, start: int, arrived: asyncio.Queue[bytes | _End | Exception]) -> None:
        """Reads from an offset on, until the end or an error."""
        stream = SegmentStream(
            self._segment.connections,
            self._segment.segment_id,
            self._segment.name,
            start=start,
            stop=None,
            window_bytes=WINDOW_BYTES,
            on_truncation="error",
            backoff=Backoff(self._segment.give_up_after_s),
            assemble=_Windows,
        )
        try:
            await stream.run(arrived.put)
            await arrived.put(_End())
        except Exception as error:  # noqa: BLE001 - the next `read` raises it
            await arrived.put(error)

    async def _stop(self) -> None:
        """Drops what was requested in advance, also if the call is cancelled."""
        task, self._task = self._task, None
        self._window = _NOTHING
        if task is not None and not self._ownership.has_gone():
            task.cancel()  # it puts nothing into the queue from here on
        while not self._arrived.empty():
            self._arrived.get_nowait()
        if task is not None and not self._ownership.has_gone():
            await asyncio.gather(task, return_exceptions=True)

    async def _is_after_end(self, offset: int) -> bool:
        info = await self._segment.info()
        return info.is_sealed and offset > info.write_offset

    def _explained(self, error: Exception, offset: int) -> Exception:
        if isinstance(error, NotFoundError):
            return self._segment.deleted()
        if not isinstance(error, TruncatedError):
            return error
        head = error.details.get("start_offset")
        if head is None:
            return self._segment.deleted()
        return TruncatedError(
            f"byte stream {self._segment.scope}/{self._segment.stream} begins at offset {head} now: the bytes from "
            f"{offset} on were truncated; seek to {head}",
            details={"offset": offset, "start_offset": head},
        )


def check_offset(offset: int) -> int:
    """Returns the offset. Raises InvalidRequestError if it is negative."""
    if offset < 0:
        raise InvalidRequestError(f"{offset} is not an offset of a byte stream: it counts from 0")
    return offset


def writable_view(buffer: WritableBuffer) -> memoryview:
    """Returns the bytes of a buffer without a copy. Raises InvalidRequestError if they cannot be written."""
    target = byte_view(buffer)
    if target.readonly:
        raise InvalidRequestError("readinto needs a buffer that can be written, such as a bytearray")
    return target


def _closed() -> HeadraceError:
    return IllegalStateError("the reader is closed; make a new one", code="reader_closed")


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

    def __repr__(self) -> str:
        return handle_text(self, f"{self.scope}/{self.stream}", closed=self.closed)

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
        self, start: ByteStart = "earliest", *, give_up_after_s: float = BYTES_RETRY_TIMEOUT_S
    ) -> AsyncByteReader:
        """Opens a reader at "earliest", "latest" or an offset. After `give_up_after_s` without its store, reads fail.

        Raises:
            InvalidRequestError: the offset is negative.
        """
        self._check_open()
        if isinstance(start, str):
            is_earliest = current_end(start) == "earliest"
            start = await (self._segment.head_offset() if is_earliest else self._segment.tail_offset())
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
        self._open = [each for each in self._open if not each.closed] + [opened]
