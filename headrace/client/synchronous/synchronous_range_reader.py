"""`RangeReader` for programs without an event loop; thread-safe.

Generated from `ranges.range_reader.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from types import TracebackType

from headrace.client.loop_thread import LoopCaller
from headrace.client.ranges.range_reader import AsyncRangeReader
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.client.synchronous.synchronous_bases import RangeEvents


class RangeReader(RangeEvents):
    """Reads the events of a segment range once. Open it with `Headrace.range_reader`, use it with `with`.

    Every method that reads raises:
        TruncatedError: events of the range were truncated since it was listed.
        CorruptError: the range does not begin and end between two events.
        UnavailableError: the segment's store or S3 could not be reached for too long.

    Calls wait for each other; iterate in one place at a time. Bytes are requested by a thread of its own while the
    caller works on the last ones. A call that is cancelled loses nothing.
    """

    def __init__(self, thread: LoopCaller, core: AsyncRangeReader) -> None:
        super().__init__(core)
        self._thread = thread
        self._core = core

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def unread(self) -> SegmentRange:
        """The part of the range that was not returned yet. Another reader can continue there, in any process."""
        return self._core.unread

    def close(self) -> None:
        """Stops reading and closes the connections. `unread` keeps its value. A second call does nothing.

        A call that waits raises IllegalStateError. A request that runs is waited for, at most 5 s. After that its
        thread closes the connections, when it is answered or has failed.
        """
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))
