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
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.defaults import RETRY_TIMEOUT_S
from headrace.client.reading.read_progress import ReadProgress
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import SegmentRequests
from headrace.model.errors import InvalidRequestError
from headrace.model.names import segment_name
from headrace.model.stream_cuts import StreamCut

SEARCHES_AT_ONCE_MAX = 64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


async def stream_cut_at(admin: AsyncAdmin, scope: str, stream: str, time: datetime) -> StreamCut:
    """Finds the cut at a time by asking the stores of the segments. Raises as `AsyncHeadrace.stream_cut_at`."""
    if time.tzinfo is None:
        raise InvalidRequestError(f"{time} has no time zone, so it does not name a moment")
    # Stores number frames in microseconds, but their clocks count milliseconds: a frame of the same millisecond may be
    # newer than `time` under a lower number.
    ordering = max(1, (time - _EPOCH) // _MILLISECOND * 1000)
    between = await admin.segments_between(scope, stream)
    ranges = {span.segment_id: span for span in between.ranges}
    progress = ReadProgress(between.start.offsets)
    connections = SegmentConnections(admin, scope, stream)
    requests = SegmentRequests(connections, RETRY_TIMEOUT_S)
    searches = asyncio.Semaphore(SEARCHES_AT_ONCE_MAX)

    async def search(segment_id: int) -> int:
        async with searches:
            name = segment_name(scope, stream, segment_id)
            located = await requests.ask_for(
                segment_id,
                lambda request_id: wire.LocateOffset(request_id, name, 0, "", ordering),
                wire.OffsetLocated,
            )
            return located.offset

    try:
        opened = list(between.start.offsets)
        while opened:
            offsets = dict(zip(opened, await asyncio.gather(*map(search, opened)), strict=True))
            opened = []
            for segment_id, offset in offsets.items():
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
    return {successor: ranges[successor].predecessors for successor in here.successors}
