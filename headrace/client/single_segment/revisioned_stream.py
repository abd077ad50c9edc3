"""The asynchronous API for a stream of one segment whose writers know each other's entries (Pravega's revisioned
stream).

An entry is an event. A revision is a position between two entries: the offset in bytes after an entry, or that of the
first entry that is left. A conditional write succeeds only at the newest revision.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple, Protocol

from headrace import wire
from headrace.client.backoff import Backoff
from headrace.client.closing import handle_text
from headrace.client.defaults import RETRY_TIMEOUT_S
from headrace.client.reading.linked_history import LinkedHistory, LinkSource
from headrace.client.reading.segment_stream import READ_TIMEOUT_S
from headrace.client.segment_connections import EndpointSource, SegmentConnections
from headrace.client.single_segment.segment_requests import REPLY_TIMEOUT_S, MakeCommand, SegmentRequests
from headrace.codec.events import EventAssembler, frame_event
from headrace.model.arguments import checked_calls
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError, NotFoundError, TruncatedError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_HEADER_BYTES
from headrace.model.names import segment_name
from headrace.model.segment_attributes import REVISION_MARK
from headrace.wire.connections.asynchronous import AsyncConnection, Flow, SingleReply, answer_within, problem_of

READ_BYTES = 1024 * 1024
ENTRIES_PER_PAGE = 1_000

_WRITER_ID_BITS = 128
_MakeAppend = Callable[[int, int], wire.WireCommand]
"""Makes the command from the entry's number and the request id."""


class RevisionedEntry(NamedTuple):
    """An entry, and the revision after it."""

    revision: int
    value: bytes


@checked_calls()
class AsyncRevisionedStream:
    """Reads and writes the entries of one stream. Make it with `AsyncHeadrace.revisioned_stream`; use `async with`.

    Every method raises NotFoundError if the stream was deleted, and UnavailableError if its store could not be reached
    for too long.
    """

    def __init__(
        self,
        source: EndpointSource,
        scope: str,
        stream: str,
        segment_id: int,
        give_up_after_s: float = RETRY_TIMEOUT_S,
        *,
        owner: str = "",
    ) -> None:
        """`owner` is what the entries belong to, for messages; by default the stream."""
        self.scope, self.stream = scope, stream
        self._owner = owner or f"stream {scope}/{stream}"
        self._segment_id = segment_id
        self._name = segment_name(scope, stream, segment_id)
        self._give_up_after_s = give_up_after_s
        self._connections = SegmentConnections(source, scope, stream)
        self._requests = SegmentRequests(self._connections, give_up_after_s)
        self._writing = asyncio.Lock()
        self._writer_id = secrets.randbits(_WRITER_ID_BITS)
        self._event_number = 0
        self._writer: _WriterFlow | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return handle_text(self, f"{self.scope}/{self.stream}", closed=self.closed)

    async def oldest_revision(self) -> int:
        """Returns the revision before the first entry that is left."""
        return (await self._info()).start_offset

    async def latest_revision(self) -> int:
        """Returns the revision after the last entry."""
        return (await self._info()).write_offset

    async def read(
        self, start: int, end: int | None = None, *, page: int = ENTRIES_PER_PAGE
    ) -> AsyncIterator[RevisionedEntry]:
        """Yields the entries after the revision `start`, up to `end` or to the last one at the time of the call.

        `page` is how many entries one call of the synchronous API fetches.

        Raises:
            TruncatedError: entries after `start` have been truncated.
            InvalidRequestError: `start` is after `end`, or one of them is not a revision.
        """
        if end is None:
            end = (await self._info()).write_offset
        if not 0 <= start <= end:
            raise InvalidRequestError(f"the revisions {start} and {end} are not in order")
        while start < end:
            for entry in await self.read_after(start, end):
                start = entry.revision
                yield entry

    async def read_after(self, revision: int, end: int | None = None) -> list[RevisionedEntry]:
        """Returns the next entries after a revision, at most up to the revision `end`.

        At the end of the stream it waits for an entry. The list is empty if none was written for some 10 seconds.

        Raises:
            TruncatedError: entries after `revision` have been truncated.
            InvalidRequestError: `revision` is not a revision of this stream.
        """
        events = EventAssembler(revision)
        while True:
            start = revision + events.cut_off_bytes
            length = READ_BYTES if end is None else min(READ_BYTES, end - start)
            if length <= 0:
                raise InvalidRequestError(f"{end} is not a revision of {self._name}: an entry goes beyond it")
            with self._naming_owner():
                reply = await self._requests.ask(
                    self._segment_id, self._read_command(start, length), timeout_s=READ_TIMEOUT_S
                )
                if not isinstance(reply, wire.SegmentRead):
                    raise self._error(reply)
            whole = events.add(memoryview(reply.data)) if reply.data else []
            if whole or not (reply.data or events.cut_off_bytes):
                return self._entries(revision, whole)

    async def time_of(self, revision: int) -> datetime | None:
        """Returns when the entry before a revision was stored, by the clock of its store; None if that is not known.

        It may be earlier than it was, of bytes in tier 2 by as much as their time index is coarse.

        Raises:
            InvalidRequestError: there is no entry before the revision.
            TruncatedError: the entry was truncated.
        """
        if not 0 < revision <= (await self._info()).write_offset:
            raise InvalidRequestError(f"{self.scope}/{self.stream} has no entry before revision {revision}")
        with self._naming_owner():
            reply = await self._requests.ask(self._segment_id, self._read_command(revision - 1, 1))
            if not isinstance(reply, wire.SegmentRead):
                raise self._error(reply)
        return _time(reply.ordering_number)

    async def write(self, value: bytes) -> None:
        """Appends an entry. Returns when it is durable.

        Raises:
            InvalidRequestError: code "event_too_large": the entry is larger than 8 MiB.
            SealedError: the stream is sealed.
        """
        data = frame_event(_checked(value))
        await self._append(lambda number, request_id: self._block(data, number, request_id))

    async def write_conditionally(self, revision: int, value: bytes) -> int | None:
        """Appends an entry if `revision` is the newest one. Returns the revision after it, None if nothing was written.

        Raises the same errors as `write`.
        """
        data = _checked(value)
        written = await self._append(
            lambda number, request_id: wire.ConditionalAppend(self._writer_id, number, revision, data, request_id)
        )
        return revision + EVENT_HEADER_BYTES + len(data) if written else None

    async def mark(self) -> int | None:
        """Returns the revision that `compare_and_set_mark` has set, None if there is none."""
        with self._naming_owner():
            reply = await self._requests.ask_for(
                self._segment_id,
                lambda request_id: wire.GetSegmentAttribute(request_id, self._name, REVISION_MARK),
                wire.SegmentAttribute,
            )
        return None if reply.value == wire.NO_ATTRIBUTE_VALUE else reply.value

    async def compare_and_set_mark(self, expected: int | None, revision: int | None) -> bool:
        """Marks a revision if the mark is `expected`. Returns whether it was. None means a stream without one.

        After a lost connection the answer may be False although this call has set the mark.
        """
        before, after = (wire.NO_ATTRIBUTE_VALUE if each is None else each for each in (expected, revision))
        with self._naming_owner():
            reply = await self._requests.ask_for(
                self._segment_id,
                lambda request_id: wire.UpdateSegmentAttribute(request_id, self._name, REVISION_MARK, after, before),
                wire.SegmentAttributeUpdated,
            )
        return reply.success

    async def truncate(self, revision: int) -> None:
        """Removes the entries before a revision. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: `revision` is negative, or the stream ends before it.
        """
        with self._naming_owner():
            truncated = revision >= 0 and await self._requests.truncate_segment(self._segment_id, self._name, revision)
        if not truncated:
            raise InvalidRequestError(
                f"{self.scope}/{self.stream} cannot be truncated at revision {revision}: it has no such revision",
                details={"revision": revision},
            )

    @property
    def closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._is_closed = True
        await self._connections.close()

    async def __aenter__(self) -> AsyncRevisionedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _append(self, make: _MakeAppend) -> bool:
        """Appends one entry, exactly once also over several connections. Returns False if its condition does not hold.

        The store keeps the number of the writer's last entry, so it tells after a lost connection what was stored.
        """
        async with self._writing:
            self._event_number += 1
            backoff = Backoff(self._give_up_after_s)
            while True:
                try:
                    with self._naming_owner():
                        return await self._try_append(make)
                except HeadraceError as problem:
                    self._drop_writer()
                    if problem.retry == "never":
                        raise
                    self._connections.forget(self._segment_id)
                    await backoff.wait(problem)
                except BaseException:
                    self._drop_writer()  # its answer is still to come, and would be taken for that of the next entry
                    raise

    async def _try_append(self, make: _MakeAppend) -> bool:
        connection = await self._connections.to_segment(self._segment_id)
        if self._writer is None or self._writer.flow.connection is not connection:
            self._drop_writer()
            self._writer = _WriterFlow(connection, self._segment_id)
            last_number = await self._writer.set_up(self._writer_id, self._name)
            if last_number >= self._event_number:
                return True
        writer = self._writer
        reply = await writer.ask(make(self._event_number, writer.flow.next_id()))
        if isinstance(reply, wire.ConditionalCheckFailed):
            return False
        if not isinstance(reply, wire.DataAppended):
            raise problem_of(writer.flow, reply)
        return True

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.flow.close()
            self._writer = None

    def _block(self, data: bytes, number: int, request_id: int) -> wire.WireCommand:
        return wire.AppendBlockEnd(self._writer_id, len(data), data, 1, number, request_id)

    async def _info(self) -> wire.StreamSegmentInfo:
        with self._naming_owner():
            return await self._requests.segment_info(self._segment_id, self._name)

    @contextmanager
    def _naming_owner(self) -> Iterator[None]:
        """Says in an error what was deleted: a store knows only the name of the segment."""
        try:
            yield
        except NotFoundError as error:
            raise NotFoundError(
                f"{self._owner} was deleted", details=error.details, code=error.specific_code
            ) from error

    def _read_command(self, start: int, length: int) -> MakeCommand:
        return lambda request_id: wire.ReadSegment(self._name, start, length, "", request_id)

    def _entries(self, start: int, values: list[bytes]) -> list[RevisionedEntry]:
        entries = []
        for value in values:
            start += EVENT_HEADER_BYTES + len(value)
            entries.append(RevisionedEntry(start, value))
        return entries

    def _error(self, reply: wire.WireCommand) -> HeadraceError:
        problem = wire.error_of_reply(reply)
        if isinstance(problem, TruncatedError):
            return TruncatedError(
                f"entries of {self._name} were truncated: read from the mark or from the oldest revision",
                details=problem.details,
            )
        return problem


class StoredRevisions(AsyncRevisionedStream):
    """What S3 has of the entries of a stream, without a connection to its store. It cannot be written.

    S3 has no mark. The newest entries are some seconds behind.
    """

    def __init__(self, source: StateSource, scope: str, stream: str, segment_id: int) -> None:
        super().__init__(source, scope, stream, segment_id)
        self._history = LinkedHistory(source, scope, stream)
        self._oldest = 0
        self._events = EventAssembler(0)
        self._unread: list[RevisionedEntry] = []

    async def mark(self) -> int | None:
        return None

    async def oldest_revision(self) -> int:
        await self._fetch()
        return self._oldest

    async def latest_revision(self) -> int:
        while await self._fetch():
            pass
        return self._events.offset

    async def read(
        self, start: int, end: int | None = None, *, page: int = ENTRIES_PER_PAGE
    ) -> AsyncIterator[RevisionedEntry]:
        for entry in await self.read_after(start, end):
            yield entry

    async def read_after(self, revision: int, end: int | None = None) -> list[RevisionedEntry]:
        """As `AsyncRevisionedStream.read_after`, without waiting. Entries up to the revision are forgotten."""
        await self.latest_revision()
        if revision < self._oldest:
            raise TruncatedError(f"entries of {self._name} were truncated: read from the oldest revision")
        self._unread = [entry for entry in self._unread if entry.revision > revision]
        return list(self._unread)

    async def time_of(self, revision: int) -> datetime | None:
        raise self._only_read()

    async def compare_and_set_mark(self, expected: int | None, revision: int | None) -> bool:
        raise self._only_read()

    async def truncate(self, revision: int) -> None:
        raise self._only_read()

    async def close(self) -> None:
        await super().close()
        await self._history.close()

    async def _append(self, make: _MakeAppend) -> bool:
        raise self._only_read()

    async def _fetch(self) -> bool:
        """Reads what S3 has behind the last fetch, up to the next listing. Returns whether it had anything."""
        start = self._events.offset + self._events.cut_off_bytes
        try:
            async with aclosing(self._history.stored(self._segment_id, start, None)) as windows:
                async for window in windows:
                    begin = self._events.offset
                    self._unread += self._entries(begin, self._events.add(memoryview(window)))
        except TruncatedError as error:
            head = error.details.get("startOffset")
            if not isinstance(head, int) or head <= start:
                raise
            self._oldest, self._events, self._unread = head, EventAssembler(head), []
            return True
        return self._events.offset + self._events.cut_off_bytes > start

    def _only_read(self) -> InvalidRequestError:
        return InvalidRequestError(f"{self.scope}/{self.stream} was opened from S3: it can only be read there")


class StateSource(EndpointSource, LinkSource, Protocol):
    """Finds the store of a segment, and what S3 has of it."""


class _WriterFlow:
    """The flow of the writer over one connection."""

    def __init__(self, connection: AsyncConnection, segment_id: int) -> None:
        self._replies = SingleReply()
        self.flow: Flow = connection.open_flow(self._replies, segment_id)

    async def set_up(self, writer_id: int, name: str) -> int:
        """Returns the number of the writer's last stored entry."""
        reply = await self.ask(wire.SetupAppend(self.flow.next_id(), writer_id, name))
        if not isinstance(reply, wire.AppendSetup):
            raise problem_of(self.flow, reply)
        return reply.last_event_number

    async def ask(self, command: wire.WireCommand) -> wire.WireCommand:
        return await answer_within(self.flow, self._replies.ask(self.flow, command), REPLY_TIMEOUT_S)


def _time(ordering_number: int) -> datetime | None:
    """The time of a number of the store's time index, in microseconds; 0 is none."""
    try:
        return datetime.fromtimestamp(ordering_number / 1e6, UTC) if ordering_number else None
    except (ValueError, OverflowError, OSError) as error:
        raise CorruptError(f"{ordering_number} is not a time in microseconds") from error


def _checked(value: bytes) -> bytes:
    if len(value) > EVENT_BYTES_MAX:
        raise InvalidRequestError(
            f"an entry of {len(value)} bytes is too large: at most {EVENT_BYTES_MAX} bytes; split it",
            details={"bytes": len(value), "bytes_max": EVENT_BYTES_MAX},
            code="event_too_large",
        )
    return bytes(value)
