"""How far a reader group is behind: in bytes, in events and in seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace import wire
from headrace.api.segments import RangeBetween
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.groups.group_cuts import stream_cuts
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import MakeCommand, SegmentRequests
from headrace.codec.events import EventAssembler
from headrace.model.group_balance import slowest_lag_s
from headrace.model.group_state import GroupState
from headrace.model.names import StreamSegmentName, segment_name
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.model.stream_cuts import StreamCut
from headrace.model.unread_events import EventCount, events_between

# Counts the events in ranges of a stream's segments: exactly where that is cheap, else as an estimate.
#
# A small range is read. Of a whole segment the store knows the count. Of any other range the count is estimated, from
# the mean size of the segment's events.

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
        name, segment_id = segment_name(scope, stream, one.segment_id), one.segment_id
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


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """What a group has not read of one segment.

    `events_unread` is exact up to 64 KiB and for a segment of which nothing was read. Otherwise `events_are_estimated`
    is true, and it is the number of bytes divided by the mean size of all events of the segment. The store counts an
    event above 8 MiB once for each 8 MiB.
    """

    segment: StreamSegmentName
    bytes_unread: int
    events_unread: int
    events_are_estimated: bool


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind.

    The bytes and events count from the last checkpoint, or from where the readers' segments were handed out.
    `segments` are those that have unread bytes. `seconds` is the lag of the reader that is furthest behind, as it told;
    None if none has told one, 0 for one of less than half a minute.
    """

    bytes_by_stream: dict[str, int]
    seconds: float | None
    segments: tuple[SegmentLag, ...]

    @property
    def bytes_unread(self) -> int:
        return sum(self.bytes_by_stream.values())

    @property
    def events_unread(self) -> int:
        """An estimate, unless `events_are_estimated` is false."""
        return sum(one.events_unread for one in self.segments)

    @property
    def events_are_estimated(self) -> bool:
        """Whether the events of some segment are an estimate."""
        return any(one.events_are_estimated for one in self.segments)

    @property
    def events_by_stream(self) -> dict[str, int]:
        found = Counter(dict.fromkeys(self.bytes_by_stream, 0))
        for one in self.segments:
            found[f"{one.segment.scope}/{one.segment.stream}"] += one.events_unread
        return dict(found)


async def lag_of_state(admin: AsyncAdmin, state: GroupState, give_up_after_s: float) -> GroupLag:
    """Returns how far the group with this state is behind the tails of its streams, or behind its end cuts."""
    segments: list[SegmentLag] = []
    by_stream = dict.fromkeys(state.configuration.starts, 0)
    for cut in await recorded_cuts(admin, state):
        offsets = state.configuration.ends.get(f"{cut.scope}/{cut.stream}")
        end = None if offsets is None else StreamCut.of(cut.scope, cut.stream, offsets)
        of_stream = await unread_segments(admin, cut, end, give_up_after_s)
        by_stream[f"{cut.scope}/{cut.stream}"] = sum(one.bytes_unread for one in of_stream)
        segments += of_stream
    return GroupLag(by_stream, slowest_lag_s(state), tuple(segments))


async def recorded_cuts(admin: AsyncAdmin, state: GroupState) -> tuple[StreamCut, ...]:
    """Returns where the group would begin again. Raises as `stream_cuts`."""
    last = state.checkpoints.last
    return await stream_cuts(admin, state.positions if last is None else last)


async def unread_segments(
    admin: AsyncAdmin, cut: StreamCut, end: StreamCut | None, give_up_after_s: float
) -> list[SegmentLag]:
    """Returns the segments that have bytes between a cut and an end (None: the tail). Raises as `count_events`."""
    between = await admin.segments_between(cut.scope, cut.stream, cut, end)
    ranges = [one for one in between.ranges if one.end_offset > one.start_offset]
    counts = await count_events(admin, cut.scope, cut.stream, ranges, give_up_after_s)
    return [
        SegmentLag(
            StreamSegmentName(cut.scope, cut.stream, one.segment_id),
            one.end_offset - one.start_offset,
            count.events,
            count.is_estimate,
        )
        for one, count in zip(ranges, counts, strict=True)
    ]
