"""`RevisionedStream` for programs without an event loop; thread-safe.

Generated from `single_segment.revisioned_stream.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import TracebackType

from headrace.client.loop_thread import LoopCaller
from headrace.client.single_segment.revisioned_stream import ENTRIES_PER_PAGE, AsyncRevisionedStream, RevisionedEntry


class RevisionedStream:
    """Reads and writes the entries of one stream. Make it with `Headrace.revisioned_stream`; use `with`.

    Every method raises NotFoundError if the stream was deleted, and UnavailableError if its store could not be reached
    for too long.
    """

    def __init__(self, thread: LoopCaller, core: AsyncRevisionedStream) -> None:
        self._thread = thread
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def oldest_revision(self) -> int:
        """Returns the revision before the first entry that is left."""
        return self._thread.run(self._core.oldest_revision())

    def latest_revision(self) -> int:
        """Returns the revision after the last entry."""
        return self._thread.run(self._core.latest_revision())

    def read(self, start: int, end: int | None = None, *, page: int = ENTRIES_PER_PAGE) -> Iterator[RevisionedEntry]:
        """Yields the entries after the revision `start`, up to `end` or to the last one at the time of the call.

        `page` is how many entries one call of the synchronous API fetches.

        Raises:
            TruncatedError: entries after `start` have been truncated.
            InvalidRequestError: `start` is after `end`, or one of them is not a revision.
        """
        yield from self._thread.iterate(lambda: self._core.read(start, end, page=page), page)

    def read_after(self, revision: int, end: int | None = None) -> list[RevisionedEntry]:
        """Returns the next entries after a revision, at most up to the revision `end`.

        At the end of the stream it waits for an entry. The list is empty if none was written for some 10 seconds.

        Raises:
            TruncatedError: entries after `revision` have been truncated.
            InvalidRequestError: `revision` is not a revision of this stream.
        """
        return self._thread.run(self._core.read_after(revision, end))

    def time_of(self, revision: int) -> datetime | None:
        """Returns when the entry before a revision was stored, by the clock of its store; None if that is not known.

        It may be earlier than it was, of bytes in tier 2 by as much as their time index is coarse.

        Raises:
            InvalidRequestError: there is no entry before the revision.
            TruncatedError: the entry was truncated.
        """
        return self._thread.run(self._core.time_of(revision))

    def write(self, value: bytes) -> None:
        """Appends an entry. Returns when it is durable.

        Raises:
            InvalidRequestError: code "event_too_large": the entry is larger than 8 MiB.
            SealedError: the stream is sealed.
        """
        self._thread.run(self._core.write(value))

    def write_conditionally(self, revision: int, value: bytes) -> int | None:
        """Appends an entry if `revision` is the newest one. Returns the revision after it, None if nothing was written.

        Raises the same errors as `write`.
        """
        return self._thread.run(self._core.write_conditionally(revision, value))

    def mark(self) -> int | None:
        """Returns the revision that `compare_and_set_mark` has set, None if there is none."""
        return self._thread.run(self._core.mark())

    def compare_and_set_mark(self, expected: int | None, revision: int | None) -> bool:
        """Marks a revision if the mark is `expected`. Returns whether it was. None means a stream without one.

        After a lost connection the answer may be False although this call has set the mark.
        """
        return self._thread.run(self._core.compare_and_set_mark(expected, revision))

    def truncate(self, revision: int) -> None:
        """Removes the entries before a revision. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: `revision` is negative, or the stream ends before it.
        """
        self._thread.run(self._core.truncate(revision))

    @property
    def closed(self) -> bool:
        return self._core.closed

    def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> RevisionedStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))
