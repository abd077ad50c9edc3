"""`ByteReader` for programs without an event loop; thread-safe.

Generated from `single_segment.byte_reader.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from types import TracebackType

from headrace.client.loop_thread import LoopCaller
from headrace.client.single_segment.byte_reader import AsyncByteReader
from headrace.client.synchronous.synchronous_bases import ByteReads


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
