"""The time window of a reader: the watermarks around its position, read from the stream's mark segment.

Watermarks move forward, and so do positions until a reader group is reset. Each watermark is therefore read once, and
dropped after the reader has passed it. If a position has moved back, reading begins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from headrace import wire
from headrace.api.segments import SegmentEndpoint
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import MakeCommand, SegmentRequests
from headrace.codec.events import EventAssembler
from headrace.codec.stored_objects import watermark_of_payload
from headrace.model.errors import NotFoundError, TruncatedError
from headrace.model.names import mark_segment_name, mark_stream_name
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.watermarks import Watermark, is_at_or_behind
from headrace.model.writer_marks import Positions, positions_of

READ_BYTES = 1024 * 1024
WATERMARK_BYTES_USUAL = 16 * 1024
_SEGMENT_ID = 0


class TimeWindow(NamedTuple):
    """Bounds of the event times at a position, from the times that the writers noted.

    Events from the position on are not older than `lower`, unless a writer returns after a long silence. `upper` is the
    newest time that writers had reached at about the position. Events read before it may be slightly newer. A bound is
    None while no watermark determines it.
    """

    lower: int | None
    upper: int | None


class TimeWindows:
    """Computes the time windows of one reader. Calls must not overlap."""

    def __init__(self, admin: AsyncAdmin, scope: str, stream: str, give_up_after_s: float) -> None:
        self._admin = admin
        self._scope, self._stream = scope, stream
        self._name = mark_segment_name(scope, stream)
        self._connections = SegmentConnections(_MarkEndpoints(admin, stream), scope, mark_stream_name(stream))
        self._requests = SegmentRequests(self._connections, give_up_after_s)
        self._position: Positions = ()
        self._segments: dict[int, StreamSegment] = {}
        self._passed: Watermark | None = None
        self._ahead: deque[Watermark] = deque()
        self._events: EventAssembler | None = None

    async def at(self, offsets: Mapping[int, int]) -> TimeWindow:
        """Returns the window at a position (offset in bytes by segment id).

        Raises:
            NotFoundError: the stream was deleted.
            UnavailableError: the store of the mark segment could not be reached for too long.
            CorruptError: the mark segment does not contain watermarks.
        """
        position = await self._positions(offsets)
        if position is None:
            return self._window(None)
        if not is_at_or_behind(position, self._position):
            self._passed, self._events = None, None
            self._ahead.clear()
        self._position = position
        if self._events is None and not await self._begin(position):
            return self._window(None)
        end = (await self._info()).write_offset
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
        """Adds the key ranges of the segments to the offsets. The ranges are requested once and cached.

        Returns None if a segment has been truncated: the controller no longer knows its range, and the reader gets
        TruncatedError when it reads on.
        """
        known = {identifier: self._segments[identifier] for identifier in offsets if identifier in self._segments}
        for epoch in sorted({segment_epoch(identifier) for identifier in offsets if identifier not in known}):
            try:
                found = await self._admin.epoch_segments(self._scope, self._stream, epoch=epoch)
            except TruncatedError:
                return None
            known |= {
                segment.segment_id: StreamSegment(segment.segment_id, segment.key_range) for segment in found.segments
            }
        if not offsets.keys() <= known.keys():
            return None
        self._segments = {identifier: known[identifier] for identifier in offsets}
        return positions_of({self._segments[identifier]: offset for identifier, offset in offsets.items()})

    async def _begin(self, position: Positions) -> bool:
        """Starts reading at or shortly before the last passed watermark. False if the stream has no watermark."""
        newest = await self._admin.watermarks.newest(self._scope, self._stream)
        if newest.watermark is None:
            return False
        start = newest.offset
        if not is_at_or_behind(position, newest.watermark.cut):
            start = await self._search(position, start)
        self._events = EventAssembler(start)
        return True

    async def _search(self, position: Positions, before: int) -> int:
        """Finds the offset of a passed watermark, at most READ_BYTES before the first one ahead, or of the oldest one.

        Each watermark is a single append, and the store knows the offsets of appends, so a binary search is possible.
        """
        low, high = (await self._info()).start_offset, before
        while high - low > READ_BYTES:
            middle = (low + high) // 2
            found = await self._boundary(middle)
            if found >= high:
                high = middle
                continue
            try:
                passed = is_at_or_behind(position, (await self._watermark_at(found)).cut)
            except TruncatedError as gone:
                low = max(found, int(gone.details["start_offset"]))
                continue
            low, high = (found, high) if passed else (low, found)
        return low

    def _pass(self, position: Positions) -> None:
        while self._ahead and is_at_or_behind(position, self._ahead[0].cut):
            self._passed = self._ahead.popleft()

    def _first_ahead(self, position: Positions) -> Watermark | None:
        """Returns the first watermark that the position has not passed in any segment."""
        return next((each for each in self._ahead if is_at_or_behind(each.cut, position)), None)

    async def _info(self) -> wire.StreamSegmentInfo:
        """Returns the start and the end of the mark segment."""
        reply = await self._ask(lambda request_id: wire.GetStreamSegmentInfo(request_id, self._name))
        if not isinstance(reply, wire.StreamSegmentInfo) or not reply.exists:
            raise self._gone()
        return reply

    async def _boundary(self, offset: int) -> int:
        """Returns the first known offset of a watermark at or after `offset`, or the end of the segment."""
        reply = await self._ask(lambda request_id: wire.LocateOffset(request_id, self._name, offset))
        if not isinstance(reply, wire.OffsetLocated):
            raise self._gone()
        return reply.offset

    async def _watermark_at(self, offset: int) -> Watermark:
        """Reads the watermark that starts at `offset`."""
        events = EventAssembler(offset)
        while not (found := events.add(await self._read(offset + events.cut_off_bytes, WATERMARK_BYTES_USUAL))):
            continue
        return watermark_of_payload(found[0])

    async def _read_more(self, end: int) -> bool:
        """Reads the next watermarks up to `end`. False if all have been read."""
        events = self._events
        assert events is not None, "only called after `_begin`"
        start = events.offset + events.cut_off_bytes
        if start >= end:
            return False
        try:
            data = await self._read(start, min(READ_BYTES, end - start))
        except TruncatedError as gone:
            self._events = EventAssembler(int(gone.details["start_offset"]))
        else:
            self._ahead += map(watermark_of_payload, events.add(data))
        return True

    async def _read(self, start: int, length: int) -> memoryview:
        """Reads some of the bytes from `start` on. Raises TruncatedError if they have been truncated."""
        reply = await self._ask(lambda request_id: wire.ReadSegment(self._name, start, length, "", request_id))
        if isinstance(reply, wire.SegmentIsTruncated):
            raise wire.error_of_reply(reply)
        if not isinstance(reply, wire.SegmentRead):
            raise self._gone()
        return memoryview(reply.data)

    def _gone(self) -> NotFoundError:
        return NotFoundError(f"stream {self._scope}/{self._stream} has no watermarks any more: it was deleted")

    async def _ask(self, command: MakeCommand) -> wire.WireCommand:
        """Sends a request to the mark segment's store until it answers. Raises errors that are final."""
        return await self._requests.ask(_SEGMENT_ID, command)


class _MarkEndpoints:
    """Finds the mark segment of a stream for `SegmentConnections`."""

    def __init__(self, admin: AsyncAdmin, stream: str) -> None:
        self.delegation_tokens = admin.delegation_tokens
        self.trust = admin.trust
        self._admin = admin
        self._stream = stream

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        return await self._admin.watermarks.mark_segment_endpoint(scope, self._stream)
