"""`ByteWriter` for programs without an event loop; thread-safe.

Generated from `single_segment.byte_writer.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from types import TracebackType

from headrace.client.loop_thread import LoopCaller
from headrace.client.single_segment.byte_writer import AsyncByteWriter
from headrace.client.synchronous.synchronous_bases import ByteWrites


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
