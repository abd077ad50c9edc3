"""`ByteReader` and `ByteWriter` and `ByteStream` for programs without an event loop; thread-safe.

Generated from `single_segment.byte_stream.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from types import TracebackType

from headrace.client.loop_thread import LoopCaller
from headrace.client.single_segment.byte_stream import AsyncByteReader, AsyncByteStream, AsyncByteWriter, ByteStart
from headrace.client.single_segment.segment_requests import BYTES_RETRY_TIMEOUT_S
from headrace.client.synchronous.synchronous_bases import ByteReads, ByteWrites
from headrace.client.writing.batch_accumulator import BUFFER_BYTES


class ByteReader(ByteReads):
    """Reads bytes of a stream of one segment. Make it with `ByteStream.reader`, use it with `with`.

    It has the methods of a file that is open for reading. At the tail of a stream that is not sealed, `read` waits for
    bytes; at the end of a sealed one it returns none. Calls wait for each other, so do not let several tasks read.
    """

    def __init__(self, thread: LoopCaller, core: AsyncByteReader) -> None:
        super().__init__(core)
        self._thread = thread
        self._core = core

    def tell(self) -> int:
        """Returns the position: the offset in bytes of the next byte to read."""
        return self._thread.run(self._core.tell())

    def available(self) -> int:
        """Returns how many bytes after the position are stored, so that `read` does not wait for a writer."""
        return self._thread.run(self._core.available())

    def head_offset(self) -> int:
        """Returns the offset of the first byte that is not truncated."""
        return self._thread.run(self._core.head_offset())

    def tail_offset(self) -> int:
        """Returns the offset after the last stored byte, in bytes."""
        return self._thread.run(self._core.tail_offset())

    @property
    def closed(self) -> bool:
        return self._core.closed

    def close(self) -> None:
        """Stops reading. A call that waits raises IllegalStateError. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> ByteReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))


class ByteWriter(ByteWrites):
    """Writes bytes to a stream of one segment. Make it with `ByteStream.writer`, use it with `with`.

    At its end the `with` block flushes and closes the writer; after an exception it closes it without waiting.
    """

    def __init__(self, thread: LoopCaller, core: AsyncByteWriter) -> None:
        super().__init__(core)
        self._thread = thread
        self._core = core

    def tail_offset(self) -> int:
        """Returns the offset after the last stored byte, in bytes. `flush` first to include all written ones."""
        return self._thread.run(self._core.tail_offset())

    def truncate_data_before(self, offset: int) -> None:
        """Removes the bytes before an offset. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: the stream ends before the offset.
            NotFoundError: the stream was deleted.
        """
        self._thread.run(self._core.truncate_data_before(offset))

    def close_and_seal(self) -> None:
        """Flushes, seals the stream so that readers find an end, and closes the writer.

        Bytes that other writers have stored before the seal stay. Raises the same errors as `flush`.
        """
        self._thread.run(self._core.close_and_seal())

    @property
    def closed(self) -> bool:
        return self._core.closed

    def close(self) -> None:
        """Flushes, then closes the connections. Raises the same errors as `flush`. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> ByteWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))


class ByteStream:
    """Opens writers and readers of one byte stream. Make it with `Headrace.byte_stream`; use `with`.

    Every method raises NotFoundError if the stream was deleted, and UnavailableError if its store could not be reached
    for too long.
    """

    def __init__(self, thread: LoopCaller, core: AsyncByteStream) -> None:
        self._thread = thread
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def writer(
        self,
        *,
        expected_offset: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        give_up_after_s: float = BYTES_RETRY_TIMEOUT_S,
    ) -> ByteWriter:
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
        return ByteWriter(
            self._thread,
            self._thread.run(
                self._core.writer(
                    expected_offset=expected_offset, buffer_bytes=buffer_bytes, give_up_after_s=give_up_after_s
                )
            ),
        )

    def reader(self, start: ByteStart = "earliest", *, give_up_after_s: float = BYTES_RETRY_TIMEOUT_S) -> ByteReader:
        """Opens a reader at "earliest", "latest" or an offset. After `give_up_after_s` without its store, reads fail.

        Raises:
            InvalidRequestError: the offset is negative.
        """
        return ByteReader(self._thread, self._thread.run(self._core.reader(start, give_up_after_s=give_up_after_s)))

    def head_offset(self) -> int:
        """Returns the offset of the first byte that is not truncated."""
        return self._thread.run(self._core.head_offset())

    def tail_offset(self) -> int:
        """Returns the offset after the last stored byte."""
        return self._thread.run(self._core.tail_offset())

    def truncate_data_before(self, offset: int) -> None:
        """Removes the bytes before an offset. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: the stream ends before the offset.
        """
        self._thread.run(self._core.truncate_data_before(offset))

    @property
    def closed(self) -> bool:
        return self._core.closed

    def close(self) -> None:
        """Flushes and closes all writers, and closes all readers. Raises the first error of a writer."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))
