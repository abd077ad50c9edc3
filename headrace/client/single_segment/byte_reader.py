"""The asynchronous API for reading bytes of a byte stream, at any offset, up to the end of a sealed stream.

The reader requests bytes in advance, and holds at most WINDOWS_WAITING_MAX windows that were not read.
"""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Literal, NamedTuple

from headrace.client.backoff import Backoff
from headrace.client.ownership import Ownership
from headrace.client.reading.segment_stream import SegmentStream
from headrace.client.single_segment.byte_writer import byte_view
from headrace.client.single_segment.segment_requests import ByteSegment
from headrace.model.arguments import checked_calls
from headrace.model.errors import HeadraceError, IllegalStateError, InvalidRequestError, NotFoundError, TruncatedError

WINDOW_BYTES = 1024 * 1024
WINDOWS_WAITING_MAX = 4

ByteStart = Literal["head", "tail"] | int
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
            found = await self._next(size)
            data = found.copied()
            self.take(found)
            return data

    async def readinto(self, buffer: WritableBuffer) -> int:
        """Reads bytes into a buffer, at most as many as it has room for. Returns their number. Raises as `read`."""
        target = writable_view(buffer)
        async with self._reading:
            found = await self._next(len(target))
            count = len(found.data)
            target[:count] = found.data
            self.take(found)
            return count

    async def next_bytes(self, size: int | None) -> FoundBytes:
        """Returns what `read` would, and leaves the position where it is. The caller moves it with `take`."""
        async with self._reading:
            return await self._next(size)

    def take(self, found: FoundBytes) -> bool:
        """Moves the position past bytes. False if it is not before them any more, because another thread has moved it.

        From the check on it calls nothing, so that no other thread and no interrupt can come in between, and an
        interrupt that comes later does not find the position moved.
        """
        end, window_end = found.end, self._window.end
        if self._position != found.offset:
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
            self._window = found = FoundBytes(position, memoryview(await self._rest(position)))
            return found
        unread = self._unread(position)
        if size and not unread:
            unread = memoryview(await self._next_window(position))
            self._window = FoundBytes(position, unread)
        return FoundBytes(position, unread[:size])

    async def _rest(self, position: int) -> bytes:
        """All bytes from the position up to the end."""
        found: list[bytes | memoryview] = [self._unread(position)]
        end = position + len(found[0])
        try:
            while window := await self._next_window(end):
                found.append(window)
                end += len(window)
        except BaseException:
            await self._stop()  # the next call reads from the position
            raise
        return b"".join(found)

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
