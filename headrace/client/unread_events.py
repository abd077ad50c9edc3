"""Counts the events in ranges of a stream's segments: exactly where that is cheap, else as an estimate.

A small range is read. Of a whole segment the store knows the count. Of any other range the count is estimated, from the
mean size of the segment's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace import wire
from headrace.api.segments import RangeBetween
from headrace.client.admin import AsyncAdmin
from headrace.client.segment_connections import SegmentConnections
from headrace.client.segment_requests import MakeCommand, SegmentRequests
from headrace.codec.events import EventAssembler
from headrace.model.names import segment_name
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.model.unread_events import EventCount, events_between

READ_BYTES_MAX = 64 * 1024
"""Ranges up to this size are read to count their events."""

COUNTS_AT_ONCE_MAX = 64


async def count_events(
    admin: AsyncAdmin, scope: str, stream: str, ranges: Sequence[RangeBetween], give_up_after_s: float
) -> list[EventCount]:
    """Returns the number of events in each range.

    Raises:
        TruncatedError: some of the ranges have been truncated meanwhile.
        UnavailableError: a segment's store could not be reached for too long.
        CorruptError: a range does not contain whole events.
    """
    connections = SegmentConnections(admin, scope, stream)
    requests = SegmentRequests(connections, give_up_after_s)
    counts = asyncio.Semaphore(COUNTS_AT_ONCE_MAX)

    async def count(one: RangeBetween) -> EventCount:
        name, segment_id = segment_name(scope, stream, one.segment.segment_id), one.segment.segment_id
        async with counts:
            if one.end_offset - one.start_offset <= READ_BYTES_MAX:
                return await _read(requests, segment_id, name, one.start_offset, one.end_offset)
            return await _told(requests, segment_id, name, one.start_offset, one.end_offset)

    try:
        return await asyncio.gather(*map(count, ranges))
    finally:
        await connections.close()


async def _read(requests: SegmentRequests, segment_id: int, name: str, start: int, end: int) -> EventCount:
    events, found = EventAssembler(start), 0
    while (position := events.offset + events.cut_off_bytes) < end:
        reply = await requests.ask_for(segment_id, _read_command(name, position, end - position), wire.SegmentRead)
        found += len(events.add(memoryview(reply.data)[: end - position]))
    return EventCount(found, is_estimate=False)


def _read_command(name: str, start: int, length: int) -> MakeCommand:
    return lambda request_id: wire.ReadSegment(name, start, length, request_id=request_id)


async def _told(requests: SegmentRequests, segment_id: int, name: str, start: int, end: int) -> EventCount:
    """Counts with what the store knows. The length comes last: if it is still `end`, the total is that of `end`."""
    total = await requests.ask_for(
        segment_id,
        lambda request_id: wire.GetSegmentAttribute(request_id, name, EVENT_COUNT),
        wire.SegmentAttribute,
    )
    info = await requests.segment_info(segment_id, name)
    return events_between(start, end, length=info.write_offset, events_total=total.value)
