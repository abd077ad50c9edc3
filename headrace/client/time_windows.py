"""Between which times a reader is: the watermarks around its position, read from the stream's mark segment.

Positions only move forward, and so do watermarks, so each is read once and forgotten when it is passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.client.admin import AsyncAdmin
from headrace.client.back_off import BackOff
from headrace.client.connections import SegmentConnections, SingleReply, answer_within, problem_of
from headrace.client.views import SegmentEndpoint
from headrace.codec import wire_commands as wire
from headrace.codec.events import EventAssembler
from headrace.codec.watermark_event import watermark_of_payload
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError
from headrace.model.names import mark_segment_name, mark_stream_name
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.watermarks import Watermark, is_at_or_behind
from headrace.model.writer_marks import Positions, positions_of

REPLY_TIMEOUT_S = 30.0
READ_BYTES = 1024 * 1024
_SEGMENT_ID = 0


class TimeWindow(NamedTuple):
    """Times as the writers noted them. Events read from here on are not older than `lower`, unless a writer that was
    silent for too long comes back. `upper` is the newest time that writers had reached about here: some of what was
    read may be a little newer. None where no watermark says so yet.
    """

    lower: int | None
    upper: int | None


class TimeWindows:
    """The windows of one reader. For one caller at a time."""

    def __init__(self, admin: AsyncAdmin, scope: str, stream: str, give_up_after_s: float) -> None:
        self._admin = admin
        self._scope, self._stream = scope, stream
        self._give_up_after_s = give_up_after_s
        self._name = mark_segment_name(scope, stream)
        self._connections = SegmentConnections(_MarkEndpoints(admin, stream), scope, mark_stream_name(stream))
        self._segments: dict[int, StreamSegment] = {}
        self._passed: Watermark | None = None
        self._ahead: deque[Watermark] = deque()
        self._events: EventAssembler | None = None

    async def at(self, offsets: Mapping[int, int]) -> TimeWindow:
        """The window around a position (offset in bytes by segment id) that is not before the one asked about last.

        Raises:
            NotFoundError: the stream was deleted.
            UnavailableError: the store of the mark segment could not be reached for too long.
            CorruptError: the mark segment does not hold watermarks.
        """
        position = await self._positions(offsets)
        if position is None or (self._events is None and not await self._begin(position)):
            return self._window(None)
        end = await self._end()
        self._pass(position)
        while (upper := self._first_ahead(position)) is None and await self._read_more(end):
            self._pass(position)
        return self._window(upper)

    async def close(self) -> None:
        await self._connections.close()

    def _window(self, upper: Watermark | None) -> TimeWindow:
        passed = self._passed
        return TimeWindow(None if passed is None else passed.lower_time, None if upper is None else upper.upper_time)

    async def _positions(self, offsets: Mapping[int, int]) -> Positions | None:
        """The position with the key ranges of its segments, which are asked for once; None if one was truncated away:
        nobody tells where that was, and the reader will be told soon enough.
        """
        known = {identifier: self._segments[identifier] for identifier in offsets if identifier in self._segments}
        for epoch in sorted({segment_epoch(identifier) for identifier in offsets if identifier not in known}):
            try:
                found = await self._admin.epoch_segments(self._scope, self._stream, epoch=epoch)
            except TruncatedError:
                return None
            known |= {one.segment_id: StreamSegment(one.segment_id, one.key_range) for one in found.segments}
        if not offsets.keys() <= known.keys():
            return None
        self._segments = {identifier: known[identifier] for identifier in offsets}
        return positions_of({self._segments[identifier]: offset for identifier, offset in offsets.items()})

    async def _begin(self, position: Positions) -> bool:
        """A reader that has passed the newest watermark begins there, any other at the oldest; False: there is none."""
        newest = await self._admin.watermarks.newest(self._scope, self._stream)
        if newest.watermark is None:
            return False
        self._events = EventAssembler(newest.offset if is_at_or_behind(position, newest.watermark.cut) else 0)
        return True

    def _pass(self, position: Positions) -> None:
        while self._ahead and is_at_or_behind(position, self._ahead[0].cut):
            self._passed = self._ahead.popleft()

    def _first_ahead(self, position: Positions) -> Watermark | None:
        """The first watermark that the position has nowhere gone beyond."""
        return next((one for one in self._ahead if is_at_or_behind(one.cut, position)), None)

    async def _end(self) -> int:
        """Where the mark segment ends, in bytes."""
        reply = await self._ask(lambda request_id: wire.GetStreamSegmentInfo(request_id, self._name))
        if not isinstance(reply, wire.StreamSegmentInfo) or not reply.exists:
            raise NotFoundError(f"the watermarks of stream {self._scope}/{self._stream} are gone: was it deleted?")
        return reply.write_offset

    async def _read_more(self, end: int) -> bool:
        """Reads on towards `end`; False at it."""
        events = self._events
        assert events is not None, "only called once it has begun"
        start = events.offset + events.cut_off_bytes
        if start >= end:
            return False
        length = min(READ_BYTES, end - start)
        reply = await self._ask(lambda request_id: wire.ReadSegment(self._name, start, length, "", request_id))
        if isinstance(reply, wire.SegmentIsTruncated):
            self._events = EventAssembler(reply.start_offset)
            return True
        if isinstance(reply, wire.SegmentRead):
            self._ahead += map(watermark_of_payload, events.add(memoryview(reply.data)))
            return True
        raise NotFoundError(f"the watermarks of stream {self._scope}/{self._stream} are gone: was it deleted?")

    async def _ask(self, command: Callable[[int], wire.WireCommand]) -> wire.WireCommand:
        """The reply of the mark segment's store, asked again until it answers; raises what it refuses for good."""
        back_off = BackOff(self._give_up_after_s)
        while True:
            try:
                connection = await self._connections.to_segment(_SEGMENT_ID)
                replies = SingleReply()
                flow = connection.open_flow(replies)
                try:
                    reply = await answer_within(flow, replies.ask(flow, command(flow.next_id())), REPLY_TIMEOUT_S)
                    if isinstance(reply, wire.WrongHost | wire.ErrorMessage):
                        raise problem_of(flow, reply)
                    return reply
                finally:
                    flow.close()
            except HeadraceError as problem:
                if problem.retry == "never":
                    raise
                self._connections.forget(_SEGMENT_ID)
                await back_off.wait(problem)


class _MarkEndpoints:
    """Finds the mark segment of a stream for `SegmentConnections`."""

    def __init__(self, admin: AsyncAdmin, stream: str) -> None:
        self._admin = admin
        self._stream = stream

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        return await self._admin.watermarks.mark_segment_endpoint(scope, self._stream)
