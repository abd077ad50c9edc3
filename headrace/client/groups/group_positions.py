"""The positions of a reader group: the stream cuts at them, and how far they are behind (bytes, events, seconds).

A store counts the events of a segment since its creation, those included that were truncated. It does not know the
count at each offset.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace import wire
from headrace.api.segments import RangeBetween
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import MakeCommand, SegmentRequests
from headrace.codec.events import EventAssembler
from headrace.model.errors import FrozenError
from headrace.model.group_balance import slowest_lag_s, told_lag_s
from headrace.model.group_state import GroupState, Positions
from headrace.model.names import StreamSegmentName, segment_name
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.model.segments import KeyRange, covers_key_space_once, segment_epoch
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut


class EventCount(NamedTuple):
    """A number of events. An estimate assumes that all events of the segment have the same size."""

    events: int
    is_estimate: bool


def events_between(start: int, end: int, *, length: int, events_total: int) -> EventCount:
    """The events in the bytes `[start, end)` of a segment that got `events_total` events in `length` bytes.

    The count is exact for the whole segment and for no bytes. A range with bytes has at least one event.
    """
    if start >= end:
        return EventCount(0, is_estimate=False)
    if start == 0 and end == length and events_total > 0:
        return EventCount(events_total, is_estimate=False)
    mean = round((end - start) * max(0, events_total) / max(length, end))
    return EventCount(max(1, mean), is_estimate=True)


# The stream cuts at the positions of a reader group.
#
# A segment that was read to its end leaves the state of the group at once. If it is to be merged with another one that
# is still being read, its part of the key space is in no position. Here such segments are found again, at their ends.


async def stream_cuts(admin: AsyncAdmin, positions: Positions) -> tuple[StreamCut, ...]:
    """Returns the cuts at the positions of a group, one for each stream that is not read to its end, by name.

    Raises:
        NotFoundError: one of the streams was deleted.
        TruncatedError: events after the positions have been truncated.
    """
    by_stream: dict[tuple[str, str], dict[int, int]] = {}
    for segment, offset in positions.items():
        by_stream.setdefault((segment.scope, segment.stream), {})[segment.segment_id] = offset
    return tuple([await complete_cut(admin, *name, offsets) for name, offsets in sorted(by_stream.items())])


async def complete_cut(admin: AsyncAdmin, scope: str, stream: str, offsets: Mapping[int, int]) -> StreamCut:
    """Returns the cut at these offsets by segment id, with the ends of the segments that were read next to them."""
    positions = dict(offsets)
    epochs: dict[int, dict[int, KeyRange]] = {}

    async def range_of(identifier: int) -> KeyRange | None:
        epoch = segment_epoch(identifier)
        if epoch not in epochs:
            segments = await admin.segments(scope, stream, epoch=epoch)
            epochs[epoch] = {segment.segment_id: segment.key_range for segment in segments}
        return epochs[epoch].get(identifier)

    known = {identifier: await range_of(identifier) for identifier in sorted(offsets)}
    ranges = {identifier: key_range for identifier, key_range in known.items() if key_range is not None}
    waiting, seen = deque(sorted(offsets)), set(offsets)
    while waiting and not covers_key_space_once(list(ranges.values())):
        try:
            following = await admin.successors(scope, stream, waiting.popleft(), as_recorded=True)
        except FrozenError:
            continue  # an active segment, which has no successors
        for successor in following.segments:
            if successor.segment_id in seen:
                continue
            seen.add(successor.segment_id)
            waiting.append(successor.segment_id)
            for identifier in successor.predecessors:
                if identifier in seen:
                    continue
                key_range = await range_of(identifier)
                if key_range is not None and not any(map(key_range.overlaps, ranges.values())):
                    seen.add(identifier)
                    positions[identifier], ranges[identifier] = END_OF_SEGMENT, key_range
    return StreamCut.of(scope, stream, positions)


# How far a reader group is behind: in bytes, in events and in seconds.

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

    async def count(segment_range: RangeBetween) -> EventCount:
        name, segment_id = segment_name(scope, stream, segment_range.segment_id), segment_range.segment_id
        async with counts:
            if segment_range.end_offset - segment_range.start_offset <= READ_BYTES_MAX:
                return await _read(requests, segment_id, name, segment_range.start_offset, segment_range.end_offset)
            return await _told(requests, segment_id, name, segment_range.start_offset, segment_range.end_offset)

    try:
        return await asyncio.gather(*map(count, ranges))
    finally:
        await connections.close()


async def _read(requests: SegmentRequests, segment_id: int, name: str, start: int, end: int) -> EventCount:
    events, count = EventAssembler(start), 0
    while (position := events.offset + events.cut_off_bytes) < end:
        reply = await requests.ask_for(segment_id, _read_command(name, position, end - position), wire.SegmentRead)
        count += len(events.add(memoryview(reply.data)[: end - position]))
    return EventCount(count, is_estimate=False)


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
    end_offset: int
    """Where the segment ended, or where the group's end cut is."""


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

    def bytes_after(self, segment: StreamSegmentName, offset: int) -> int:
        """The bytes of a segment behind an offset, such as the position of a reader that is past the checkpoint."""
        ends = (each.end_offset for each in self.segments if each.segment == segment)
        return max(0, next(ends, 0) - max(offset, 0))

    @property
    def events_unread(self) -> int:
        """An estimate, unless `events_are_estimated` is false."""
        return sum(segment.events_unread for segment in self.segments)

    @property
    def events_are_estimated(self) -> bool:
        """Whether the events of some segment are an estimate."""
        return any(segment.events_are_estimated for segment in self.segments)

    @property
    def events_by_stream(self) -> dict[str, int]:
        counts = Counter(dict.fromkeys(self.bytes_by_stream, 0))
        for segment in self.segments:
            counts[f"{segment.segment.scope}/{segment.segment.stream}"] += segment.events_unread
        return dict(counts)


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """A reader that is online: how far it has read in each of its segments, in bytes, as it told last.

    A reader tells several times per lease. `seconds_behind` is None until it has told it, and 0 for less than
    half a minute.
    """

    reader: str
    positions: Mapping[StreamSegmentName, int]
    seconds_behind: float | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Who reads what in a group.

    `unassigned` has the positions of segments that no reader owns yet. The segments in `waiting` are read when their
    predecessors have been.
    """

    readers: tuple[ReaderStatus, ...]
    unassigned: Mapping[StreamSegmentName, int]
    waiting: tuple[StreamSegmentName, ...]


def status_of_state(state: GroupState) -> GroupStatus:
    """Returns who reads what, by the names of readers and segments."""
    readers = [
        ReaderStatus(
            reader,
            _by_name({segment: state.last_read.get(segment, offset) for segment, offset in positions.items()}),
            told_lag_s(state, reader),
        )
        for reader, positions in sorted(state.assigned.items())
    ]
    return GroupStatus(tuple(readers), _by_name(state.unassigned), tuple(sorted(state.future, key=_name)))


def _by_name(positions: Positions) -> dict[StreamSegmentName, int]:
    return {segment: positions[segment] for segment in sorted(positions, key=_name)}


def _name(segment: StreamSegmentName) -> tuple[str, str, int]:
    return segment.scope, segment.stream, segment.segment_id


async def lag_of_state(admin: AsyncAdmin, state: GroupState, give_up_after_s: float) -> GroupLag:
    """Returns how far the group with this state is behind the tails of its streams, or behind its end cuts."""
    segments: list[SegmentLag] = []
    by_stream = dict.fromkeys(state.configuration.starts, 0)
    for cut in await recorded_cuts(admin, state):
        offsets = state.configuration.ends.get(f"{cut.scope}/{cut.stream}")
        end = None if offsets is None else StreamCut.of(cut.scope, cut.stream, offsets)
        of_stream = await unread_segments(admin, cut, end, give_up_after_s)
        by_stream[f"{cut.scope}/{cut.stream}"] = sum(each.bytes_unread for each in of_stream)
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
    ranges = [span for span in between.ranges if span.end_offset > span.start_offset]
    counts = await count_events(admin, cut.scope, cut.stream, ranges, give_up_after_s)
    return [
        SegmentLag(
            StreamSegmentName(cut.scope, cut.stream, segment_range.segment_id),
            segment_range.end_offset - segment_range.start_offset,
            count.events,
            count.is_estimate,
            segment_range.end_offset,
        )
        for segment_range, count in zip(ranges, counts, strict=True)
    ]
