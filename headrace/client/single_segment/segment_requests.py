"""Single requests to segments of one stream, and to the segment of a byte stream, retried until answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace import wire
from headrace.api.segments import SegmentView
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.client.segment_connections import SegmentConnections
from headrace.model.errors import HeadraceError, InvalidRequestError, NotFoundError
from headrace.model.names import segment_name
from headrace.wire.connections.asynchronous import SingleReply, answer_within, problem_of

# Single requests to segments of one stream, sent to the store of the segment and retried until answered.

REPLY_TIMEOUT_S = 30.0

T = TypeVar("T", bound=wire.WireCommand)
MakeCommand = Callable[[int], wire.WireCommand]
"""Makes the command from the request id."""


class SegmentRequests:
    """Sends requests over the connections, which it does not close. Only for requests that may be repeated."""

    def __init__(self, connections: SegmentConnections, give_up_after_s: float) -> None:
        self._connections = connections
        self._give_up_after_s = give_up_after_s

    async def ask(self, segment_id: int, make: MakeCommand, *, timeout_s: float = REPLY_TIMEOUT_S) -> wire.WireCommand:
        """Sends a request until the segment's store answers it. The answer may report that it was refused.

        Raises:
            UnavailableError: no store could be reached for `give_up_after_s`.
            HeadraceError: an error that no repetition can change.
        """
        backoff = Backoff(self._give_up_after_s)
        while True:
            try:
                connection = await self._connections.to_segment(segment_id)
                replies = SingleReply()
                flow = connection.open_flow(replies, segment_id)
                try:
                    reply = await answer_within(flow, replies.ask(flow, make(flow.next_id())), timeout_s)
                    if isinstance(reply, wire.WrongHost | wire.ErrorMessage):
                        raise problem_of(flow, reply)
                    return reply
                finally:
                    flow.close()
            except HeadraceError as problem:
                if problem.retry == "never":
                    raise
                self._connections.forget(segment_id)
                await backoff.wait(problem)

    async def ask_for(
        self, segment_id: int, make: MakeCommand, expected: type[T], *, timeout_s: float = REPLY_TIMEOUT_S
    ) -> T:
        """Like `ask`, and raises the error that any other answer than one of this type reports."""
        reply = await self.ask(segment_id, make, timeout_s=timeout_s)
        if isinstance(reply, expected):
            return reply
        raise wire.error_of_reply(reply)

    async def segment_info(self, segment_id: int, name: str) -> wire.StreamSegmentInfo:
        """Returns where a segment starts and ends, and whether it is sealed. Raises NotFoundError if it was deleted."""
        return await self.ask_for(
            segment_id, lambda request_id: wire.GetStreamSegmentInfo(request_id, name), wire.StreamSegmentInfo
        )

    async def truncate_segment(self, segment_id: int, name: str, offset: int) -> bool:
        """Removes the bytes of a segment before an offset. Returns False if the segment ends before it."""
        reply = await self.ask(segment_id, lambda request_id: wire.TruncateSegment(request_id, name, offset))
        if not isinstance(reply, wire.SegmentTruncated | wire.SegmentIsTruncated):
            raise wire.error_of_reply(reply)
        return isinstance(reply, wire.SegmentTruncated)


# The segment of a byte stream, and single requests to it.

BYTES_RETRY_TIMEOUT_S = 120.0


class ByteSegment:
    """The only segment of a stream, over connections of its own. Close them with `close`."""

    def __init__(
        self,
        admin: AsyncAdmin,
        scope: str,
        stream: str,
        segment_id: int,
        give_up_after_s: float = BYTES_RETRY_TIMEOUT_S,
    ) -> None:
        self.admin = admin
        self.scope, self.stream = scope, stream
        self.segment_id = segment_id
        self.name = segment_name(scope, stream, segment_id)
        self.give_up_after_s = give_up_after_s
        self.connections = SegmentConnections(admin, scope, stream)
        self._requests = SegmentRequests(self.connections, give_up_after_s)

    async def info(self) -> wire.StreamSegmentInfo:
        """Returns where the stream starts and ends, and whether it is sealed.

        Raises:
            NotFoundError: the stream was deleted.
            UnavailableError: its store could not be reached for `give_up_after_s`.
        """
        try:
            return await self._requests.segment_info(self.segment_id, self.name)
        except NotFoundError as error:
            raise self.deleted() from error

    async def head_offset(self) -> int:
        """Returns the offset of the first byte that is left. Raises as `info`."""
        return (await self.info()).start_offset

    async def tail_offset(self) -> int:
        """Returns the offset after the last byte. Raises as `info`."""
        return (await self.info()).write_offset

    async def truncate_data_before(self, offset: int) -> None:
        """Removes the bytes before an offset. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: the stream ends before the offset.
            HeadraceError: as `info`.
        """
        try:
            truncated = offset >= 0 and await self._requests.truncate_segment(self.segment_id, self.name, offset)
        except NotFoundError as error:
            raise self.deleted() from error
        if not truncated:
            raise InvalidRequestError(
                f"byte stream {self.scope}/{self.stream} cannot be truncated at offset {offset}: it has no such offset",
                details={"offset": offset},
            )

    def deleted(self) -> NotFoundError:
        return NotFoundError(f"byte stream {self.scope}/{self.stream} was deleted")

    async def close(self) -> None:
        """Closes the connections."""
        await self.connections.close()


async def only_segment(admin: AsyncAdmin, scope: str, stream: str) -> SegmentView:
    """Returns the segment of a stream that has one; the last one if the stream is sealed.

    Raises:
        NotFoundError: there is no such stream.
        InvalidRequestError: code "not_one_segment": the stream has several open segments.
    """
    current = await admin.epoch_segments(scope, stream)
    if current.sealed:
        current = await admin.epoch_segments(scope, stream, epoch=current.epoch)
    segments = current.segments
    if len(segments) != 1:
        raise InvalidRequestError(
            f"stream {scope}/{stream} has {len(segments)} segments: create one of exactly one segment",
            details={"segments": len(segments)},
            code="not_one_segment",
        )
    return segments[0]
