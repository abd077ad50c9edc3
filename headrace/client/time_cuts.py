"""Finds the stream cut at a time, with one search per segment.

The search starts with the segments at the head. It continues with the successors of segments whose events are all older
than the time. The segment stores use their time index (Pravega's PDP 28) and their clocks; a result is never too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from headrace import wire
from headrace.api.segments import RangeBetween
from headrace.client.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.client.read_progress import ReadProgress
from headrace.client.segment_connections import SegmentConnections
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.names import segment_name
from headrace.model.stream_cuts import StreamCut
from headrace.wire.connections.asynchronous import SingleReply, answer_within, problem_of

REPLY_TIMEOUT_S = 30.0
RETRY_TIMEOUT_S = 60.0
SEARCHES_AT_ONCE_MAX = 64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


async def stream_cut_at(admin: AsyncAdmin, scope: str, stream: str, time: datetime) -> StreamCut:
    """See `AsyncHeadrace.stream_cut_at`."""
    if time.tzinfo is None:
        raise InvalidRequestError(f"{time} has no time zone, so it does not name a moment")
    ordering = max(1, (time - _EPOCH) // _MICROSECOND)
    between = await admin.segments_between(scope, stream)
    ranges = {one.segment.segment_id: one for one in between.ranges}
    progress = ReadProgress(between.start.offsets)
    connections = SegmentConnections(admin, scope, stream)
    searches = asyncio.Semaphore(SEARCHES_AT_ONCE_MAX)

    async def search(segment_id: int) -> int:
        async with searches:
            return await _locate(connections, segment_id, segment_name(scope, stream, segment_id), ordering)

    try:
        opened = list(between.start.offsets)
        while opened:
            found = dict(zip(opened, await asyncio.gather(*map(search, opened)), strict=True))
            opened = []
            for segment_id, offset in found.items():
                progress.advance(segment_id, offset)
                opened += progress.finish(segment_id, _successors(ranges, segment_id, offset))
    finally:
        await connections.close()
    return StreamCut.of(scope, stream, progress.offsets)


def _successors(ranges: Mapping[int, RangeBetween], segment_id: int, offset: int) -> dict[int, tuple[int, ...]]:
    """Returns the successors of the segment with their predecessors; none if the segment has bytes from `offset` on."""
    here = ranges.get(segment_id)
    if here is None or offset < here.end_offset:
        return {}
    return {one: ranges[one].predecessors for one in here.successors}


async def _locate(connections: SegmentConnections, segment_id: int, name: str, ordering: int) -> int:
    backoff = Backoff(RETRY_TIMEOUT_S)
    while True:
        try:
            connection = await connections.to_segment(segment_id)
            replies = SingleReply()
            flow = connection.open_flow(replies)
            try:
                command = wire.LocateOffset(flow.next_id(), name, 0, "", ordering)
                reply = await answer_within(flow, replies.ask(flow, command), REPLY_TIMEOUT_S)
                if isinstance(reply, wire.OffsetLocated):
                    return reply.offset
                raise problem_of(flow, reply)
            finally:
                flow.close()
        except HeadraceError as problem:
            if problem.retry == "never":
                raise
            connections.forget(segment_id)
            await backoff.wait(problem)
