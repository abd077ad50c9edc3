"""What a report says about a stream: bytes per segment and interval, and how far its readers are behind.

A stream stores neither routing keys nor times with its events. The bytes of an interval are those between the stream
cuts at its two times, and the skew is that between the key ranges of segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from headrace.client.headrace import Headrace

INTERVALS_MAX = 200
"""Each costs a search in every segment."""


@dataclass(frozen=True, slots=True)
class SegmentMeasure:
    """A segment, and the bytes that were written to it in each interval."""

    segment_id: int
    low: float
    high: float
    bytes_written: tuple[int, ...]
    is_active: bool

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_written)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a subscriber or a reader group is behind the tail; None: not known for this kind of reader."""

    kind: str
    name: str
    bytes_unread: int
    events_unread: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StreamMeasures:
    """The measures of a stream between the first and the last of `times`; an interval is between two of them."""

    scope: str
    stream: str
    times: tuple[datetime, ...]
    segments: tuple[SegmentMeasure, ...]
    lags: tuple[Lag, ...] = ()
    unmeasured: tuple[str, ...] = field(default=())
    """Readers whose lag could not be determined, with the reason."""

    @property
    def interval_s(self) -> tuple[float, ...]:
        return tuple((end - start).total_seconds() for start, end in pairwise(self.times))

    @property
    def bytes_written(self) -> tuple[int, ...]:
        """Bytes of all segments, per interval."""
        return tuple(
            sum(segment.bytes_written[number] for segment in self.segments) for number in range(len(self.times) - 1)
        )

    @property
    def skew(self) -> float | None:
        """How many times the mean the busiest active key range gets, for its width; None without any bytes."""
        active = [segment for segment in self.segments if segment.is_active]
        total, width = sum(one.total_bytes for one in active), sum(one.high - one.low for one in active)
        if not total or not width:
            return None
        return max(one.total_bytes / (one.high - one.low) for one in active) / (total / width)


def interval_times(start: datetime, end: datetime, intervals: int) -> tuple[datetime, ...]:
    """The borders of equal intervals.

    Raises:
        InvalidRequestError: the end is not after the start, a time has no time zone, or there are too many intervals.
    """
    if start.tzinfo is None or end.tzinfo is None:
        raise InvalidRequestError("the times of a report need a time zone, as in 2026-11-23T10:00:00Z")
    if end <= start:
        raise InvalidRequestError(f"the report would end at {end}, which is not after its start, {start}")
    if not 1 <= intervals <= INTERVALS_MAX:
        raise InvalidRequestError(f"{intervals} intervals: give 1 to {INTERVALS_MAX}")
    return tuple(start + (end - start) * number / intervals for number in range(intervals + 1))


def measure_stream(headrace: Headrace, scope: str, stream: str, times: Sequence[datetime]) -> StreamMeasures:
    """Measure a stream between times.

    Raises:
        HeadraceError: as `Headrace.stream_cut_at` and `segments_between`.
    """
    cuts = [headrace.stream_cut_at(scope, stream, time) for time in times]
    active = headrace.admin.stream_cut(scope, stream, at="tail").offsets.keys()
    ranges: dict[int, tuple[float, float]] = {}
    written: dict[int, list[int]] = {}
    for number, (start, end) in enumerate(pairwise(cuts)):
        for part in headrace.admin.segments_between(scope, stream, start, end).ranges:
            ranges[part.segment_id] = (part.low, part.high)
            counts = written.setdefault(part.segment_id, [0] * (len(times) - 1))
            counts[number] = part.end_offset - part.start_offset
    segments = tuple(
        SegmentMeasure(segment_id, *ranges[segment_id], tuple(counts), segment_id in active)
        for segment_id, counts in sorted(written.items())
    )
    lags, unmeasured = _lags(headrace, scope, stream)
    return StreamMeasures(scope, stream, tuple(times), segments, tuple(lags), tuple(unmeasured))


def _lags(headrace: Headrace, scope: str, stream: str) -> tuple[list[Lag], list[str]]:
    """A reader that cannot be measured, for example because its position was truncated, must not prevent a report."""
    lags: list[Lag] = []
    unmeasured: list[str] = []
    for subscriber in headrace.admin.subscribers.list(scope, stream):
        try:
            position = StreamCut.of(scope, stream, subscriber.offsets)
            unread = headrace.admin.stream_cut_distance(scope, stream, position)
            lags.append(Lag("subscriber", subscriber.subscriber, unread))
        except HeadraceError as error:
            unmeasured.append(f"subscriber {subscriber.subscriber}: {error.message}")
    for name in headrace.admin.reader_groups.list(scope):
        try:
            with headrace.reader_group(scope, name, initialize=False) as group:
                lag = group.lag()
        except HeadraceError as error:
            unmeasured.append(f"reader group {name}: {error.message}")
            continue
        if (unread_bytes := lag.bytes_by_stream.get(f"{scope}/{stream}")) is not None:
            events = sum(one.events_unread for one in lag.segments if one.segment.stream == stream)
            lags.append(Lag("reader group", name, unread_bytes, events, lag.seconds))
    return lags, unmeasured
