"""`GroupReader` for programs without an event loop; thread-safe.

Generated from `groups.group_reader.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from types import TracebackType

from headrace.client.groups.group_reader import AsyncGroupReader
from headrace.client.loop_thread import LoopCaller
from headrace.client.reading.time_windows import TimeWindow
from headrace.client.synchronous.synchronous_bases import GroupEvents
from headrace.model.names import StreamSegmentName


class GroupReader(GroupEvents):
    """A reader of a group. Make it with `ReaderGroup.reader`, use it with `with`.

    An event counts as processed when the next one is asked for, or the reader is closed without an error. All methods
    raise IllegalStateError, code "reader_offline", if the reader was declared offline: then others read its segments.
    """

    def __init__(self, thread: LoopCaller, core: AsyncGroupReader) -> None:
        super().__init__(core)
        self._thread = thread
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    @property
    def name(self) -> str:
        """The name of the reader in its group."""
        return self._core.name

    @property
    def segments(self) -> tuple[StreamSegmentName, ...]:
        """The segments that the reader owns."""
        return self._core.segments

    @property
    def ended(self) -> bool:
        """Whether the group has read all events up to its end cuts, or to the ends of its sealed streams."""
        return self._core.ended

    @property
    def closed(self) -> bool:
        return self._core.closed

    def time_window(self, scope: str, stream: str) -> TimeWindow:
        """Returns the bounds of the event times at the group's position in a stream, from the times that writers noted.

        The position is after the events that all readers have processed. The other readers tell theirs several times
        per `lease_s`. After the failure of a reader, events that are read again may be older than `lower`.

        Raises:
            InvalidRequestError: the group does not read the stream.
            NotFoundError: the stream was deleted.
            UnavailableError: a store or the controller could not be reached for too long.
        """
        return self._thread.run(self._core.time_window(scope, stream))

    def release(self, segment: StreamSegmentName) -> bool:
        """Leaves a segment to other readers for a while. The next one begins after the processed events.

        Returns False, and keeps the segment, if a checkpoint waits for this reader.

        Raises:
            InvalidRequestError: the reader does not own the segment.
        """
        return self._thread.run(self._core.release(segment))

    def close(self) -> None:
        """Leaves the group: other readers continue after the events that were returned.

        If it is cancelled, it still tries to leave the group for a second. After that the lease ends the membership. A
        second call waits for the first, or does nothing.
        """
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))
