"""Measures the write rates of one container's segments, and reports those that do not fit their scaling policy.

Only segments with a scaling policy by rate are watched. For a watched segment an append costs one addition, for others
one check for None. Clocks are read and rules evaluated at ticks, only for segments written to since the last tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace import wire
from headrace.model.names import parent_segment_name
from headrace.model.rates import SILENT_S, SWEEP_EVERY_S, ScalingReport, SegmentRates, amortized
from headrace.model.segment_attributes import SCALE_POLICY_RATE, SCALE_POLICY_TYPE
from headrace.ports.clock import Clock
from headrace.ports.scaling_reports import ScalingReports

if TYPE_CHECKING:
    from headrace.segmentstore.containers.segment import Segment

_BYTES_PER_KILOBYTE: Final = 1024


class WatchedSegment:
    """The rates of one segment, also while the segment is evicted. `pending` counts units since its last tick."""

    __slots__ = (
        *("_touched", "counts_events", "is_touched", "name", "pending", "rates", "retired", "target", "touched_s"),
    )

    def __init__(self, name: str, rates: SegmentRates, touched: list[WatchedSegment]) -> None:
        self.name = name
        self.rates = rates
        self.counts_events = False
        self.target = 0
        self.pending = 0.0
        self.is_touched = False
        self.retired = False
        self.touched_s = rates.started_s
        self._touched = touched

    def record(self, byte_count: float, event_count: float) -> None:
        """Count an append."""
        if not self.is_touched:
            self.is_touched = True
            self._touched.append(self)
        self.pending += event_count if self.counts_events else byte_count

    def record_merge(self, byte_count: int, event_count: int, open_ms: int) -> None:
        """Count a merged transaction that was open for `open_ms`."""
        open_s = open_ms / 1000
        self.record(amortized(byte_count, open_s), amortized(event_count, open_s))


class ContainerRates:
    """The watched segments of one container. Without `reports` no segment is watched."""

    def __init__(self, clock: Clock, reports: ScalingReports | None) -> None:
        self.hot_reports = 0
        self.cold_reports = 0
        self._clock = clock
        self._reports = reports
        self._started = False
        self._watched: dict[str, WatchedSegment] = {}
        self._touched: list[WatchedSegment] = []
        self._swept_s = clock.monotonic_s()

    def __len__(self) -> int:
        return len(self._watched)

    def start(self, segments: Iterable[Segment]) -> None:
        """Watch the segments in memory, `segments`, and those that enter it later. Call it when they are served."""
        self._started = self._reports is not None
        for segment in segments:
            self.watch(segment)

    def watch(self, segment: Segment) -> None:
        """Start, update or end the watch of a segment that entered memory or changed its policy, seal or existence.

        Does nothing before `start`, so that a recovery does not count the writes that it replays.
        """
        if not self._started:
            return
        scale_type, target = segment.attribute(SCALE_POLICY_TYPE), segment.attribute(SCALE_POLICY_RATE)
        by_rate = target > 0 and scale_type in (wire.SCALE_TYPE_KBYTES_PER_SEC, wire.SCALE_TYPE_EVENTS_PER_SEC)
        if (
            not by_rate
            or segment.accepted.sealed
            or segment.accepted.removed
            or parent_segment_name(segment.name) is not None
        ):
            self._forget(segment)
            return
        watched, counts_events = self._watched.get(segment.name), scale_type == wire.SCALE_TYPE_EVENTS_PER_SEC
        if watched is None or watched.counts_events != counts_events:
            self._forget(segment)
            rates = SegmentRates.first_seen(self._clock.monotonic_s())
            watched = self._watched[segment.name] = WatchedSegment(segment.name, rates, self._touched)
            watched.counts_events = counts_events
        watched.target = target
        segment.watched = watched

    def _forget(self, segment: Segment) -> None:
        segment.watched = None
        watched = self._watched.pop(segment.name, None)
        if watched is not None:
            watched.retired = True

    def tick(self) -> None:
        """Evaluate the rates of segments written to since the last tick; call it about every TICK_S."""
        now_s = self._clock.monotonic_s()
        touched = self._touched[:]
        self._touched.clear()
        for watched in touched:
            if not watched.retired:
                self._tick_one(watched, now_s)
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now_s
            self._report_silent(now_s)

    def _tick_one(self, watched: WatchedSegment, now_s: float) -> None:
        if watched.name not in self._watched:  # silent no more
            self._watched[watched.name] = watched
            watched.rates = SegmentRates.first_seen(now_s)
        if not watched.rates.tick_due(now_s):
            self._touched.append(watched)
            return
        amount = watched.pending if watched.counts_events else watched.pending / _BYTES_PER_KILOBYTE
        watched.pending, watched.is_touched, watched.touched_s = 0.0, False, now_s
        rates = watched.rates.after_tick(amount, now_s)
        watched.rates, report = rates.judged(watched.name, watched.target, now_s, self._clock.now_ms())
        if report is not None:
            self._report(report)

    def _report_silent(self, now_s: float) -> None:
        """Report silent segments as cold and stop watching them. The next append starts a new watch."""
        silent = [each for each in self._watched.values() if now_s - each.touched_s >= SILENT_S]
        for watched in silent:
            del self._watched[watched.name]
            self._report(ScalingReport(watched.name, "cold", self._clock.now_ms(), silent=True))

    def _report(self, report: ScalingReport) -> None:
        if report.kind == "hot":
            self.hot_reports += 1
        else:
            self.cold_reports += 1
        if self._reports is not None:
            self._reports.report(report)
