"""Automatic scaling: acts on reports of segments that are too hot or too cold for their stream's scaling policy.

Reports may be delivered several times, late, out of order and by several stores at once. So a scale is accepted only if
the stream has not changed since it was planned.

A report of a cold segment writes a mark. When the neighbouring segment is reported as cold too, the two are merged. The
mark is written before the neighbours' marks are read, so of two concurrent reports at least one finds the other's mark.
"""

from __future__ import annotations

from enum import StrEnum

from headrace.controller.acceptance import Acceptance
from headrace.controller.operations import scale_stream
from headrace.metadata.cold_mark import cold_mark_key, read_cold_mark, write_cold_mark
from headrace.metadata.optimistic_retry import repeat_on_conflict
from headrace.metadata.stream import current_key
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.model.errors import ConflictError
from headrace.model.names import StreamSegmentName, parse_segment_name
from headrace.model.rates import ScalingReport
from headrace.model.requests import RequestKind
from headrace.model.scaling import ScalePlan, cold_mark, is_too_old, merge_plan, neighbours, split_plan
from headrace.model.stream_configuration import ScalingType
from headrace.model.streams import Stream
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Delete, MetadataStore, Record


class ReportOutcome(StrEnum):
    """The effect of a report."""

    IGNORED = "ignored"
    """The report is too old, or its segment is not an active segment of a stream that scales by rate."""

    KEPT = "kept"
    """No scale is possible now: the segment has no cold neighbour, or the stream has reached a limit of its size."""

    SPLIT = "split"
    MERGED = "merged"


class AutoScalingService:
    """Handles the reports of segment stores; safe for any number of threads and processes."""

    def __init__(self, store: MetadataStore, acceptance: Acceptance, clock: Clock) -> None:
        self._store = store
        self._records = StreamRecords(store)
        self._acceptance = acceptance
        self._clock = clock

    def handle(self, report: ScalingReport) -> ReportOutcome:
        """Accept a scale of the segment's stream if the report calls for one; a workflow then executes it.

        Raises:
            InvalidRequestError: the report does not name a segment of a stream, so a repeat cannot succeed.
            ConflictError: another operation runs on the stream; deliver the report again.
            UnavailableError, ThrottledError: the metadata store does not answer; deliver the report again.
        """
        segment = parse_segment_name(report.segment)
        if is_too_old(report, self._clock.now_ms()):
            return ReportOutcome.IGNORED
        return repeat_on_conflict(lambda: self._try_to_handle(report, segment))

    def _try_to_handle(self, report: ScalingReport, segment: StreamSegmentName) -> ReportOutcome:
        current, mark = self._store.get_many(
            [
                current_key(segment.scope, segment.stream),
                cold_mark_key(segment.scope, segment.stream, segment.segment_id),
            ]
        )
        stored = self._records.stored(current)
        if stored is None or not _is_of_interest(stored.stream, segment.segment_id):
            return ReportOutcome.IGNORED
        if report.kind == "hot" and mark is not None and _is_older(mark, report):
            self._store.write(Delete(mark.key, mark.version))
        # A cold mark is written only while the stream is ACTIVE; a split may wait for a batch of commits.
        may_wait = report.kind == "hot" and stored.stream.state.runs(RequestKind.COMMIT_TRANSACTIONS)
        if not stored.stream.state.is_idle and not may_wait:
            raise ConflictError(
                f"stream {stored.stream.scoped_name} is {stored.stream.state}: deliver the report again",
                details={"state": str(stored.stream.state)},
            )
        if report.kind == "hot":
            return self._split(stored, segment.segment_id, report.splits)
        if mark is None or _is_older(mark, report):
            self._mark(stored, segment.segment_id, report, mark)
        return self._merge(stored, segment.segment_id)

    def _split(self, stored: StoredStream, identifier: int, splits_wanted: int) -> ReportOutcome:
        stream = stored.stream
        plan = split_plan(stream.epoch, identifier, splits_wanted, stream.configuration.scaling.scale_factor)
        return self._scale(stored, plan, ReportOutcome.SPLIT)

    def _merge(self, stored: StoredStream, identifier: int) -> ReportOutcome:
        epoch, min_segments = stored.stream.epoch, stored.stream.configuration.scaling.min_segments
        if len(epoch.segments) <= min_segments:
            return ReportOutcome.KEPT
        cold = self._cold(stored.stream, [neighbour.segment_id for neighbour in neighbours(epoch, identifier)])
        return self._scale(stored, merge_plan(epoch, identifier, cold, min_segments), ReportOutcome.MERGED)

    def _scale(self, stored: StoredStream, plan: ScalePlan | None, outcome: ReportOutcome) -> ReportOutcome:
        if plan is None:
            return ReportOutcome.KEPT
        scale_stream.accept_unchanged(self._acceptance, stored, plan.sealed, plan.new_ranges)
        return outcome

    def _mark(self, stored: StoredStream, identifier: int, report: ScalingReport, old: Record | None) -> None:
        """Only while the segment is active for sure: a mark of a segment that was replaced would stay for ever."""
        write = write_cold_mark(stored.stream, identifier, cold_mark(report), old.version if old else None)
        self._records.while_unchanged(stored, write)

    def _cold(self, stream: Stream, identifiers: list[int]) -> set[int]:
        """The segments among `identifiers`, at most two, that are marked as cold."""
        now_ms = self._clock.now_ms()
        marks = self._store.get_many(
            [cold_mark_key(stream.scope, stream.name, identifier) for identifier in identifiers]
        )
        return {
            identifier
            for identifier, mark in zip(identifiers, marks, strict=True)
            if mark is not None and read_cold_mark(mark).counts(now_ms)
        }


def _is_of_interest(stream: Stream, identifier: int) -> bool:
    by_rate = stream.configuration.scaling.type is not ScalingType.FIXED_NUM_SEGMENTS
    return by_rate and stream.state.takes_events and identifier in stream.epoch.by_id


def _is_older(mark: Record, report: ScalingReport) -> bool:
    return read_cold_mark(mark).reported_ms < report.at_ms
