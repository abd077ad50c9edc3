"""Single requests to segments of one stream, sent to the store of the segment and retried until answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace import wire
from headrace.client.backoff import Backoff
from headrace.client.segment_connections import SegmentConnections
from headrace.model.errors import HeadraceError
from headrace.wire.connections.asynchronous import SingleReply, answer_within, problem_of

REPLY_TIMEOUT_S = 30.0
RETRY_TIMEOUT_S = 60.0
"""The usual `give_up_after_s`: for so long a request is repeated while no store answers."""

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
