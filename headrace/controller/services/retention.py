"""Retention status of a stream: how much is kept, since when, and what will be truncated next and why.

The service reads the records that the retention tick reads and applies the same rules, but writes nothing.
"""

from __future__ import annotations

from headrace.api.retention import NextTruncation, RetentionDescription
from headrace.api.stream_cuts import StreamCutView
from headrace.metadata.retention_plans import Plan, RetentionPlanner, tail_of
from headrace.metadata.retention_records import RetainedStream, RetentionRecords
from headrace.metadata.stream import no_such_stream
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.errors import UnavailableError
from headrace.model.retention import WORDS, RetentionCut, cuts_after_head
from headrace.model.stream_configuration import RetentionPolicy
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

NO_POLICY = "the stream has no retention policy: nothing is truncated"
NOTHING_YET = "there are no bytes before the place where the stream may be truncated: nothing is truncated"


class RetentionService:
    """Called by the retention route of the API; safe for any number of threads."""

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores, clock: Clock) -> None:
        self._streams = StreamRecords(store)
        self._records = RetentionRecords(store)
        self._planner = RetentionPlanner(store)
        self._subscribers = SubscriberRecords(store)
        self._segment_stores = segment_stores
        self._clock = clock

    def describe(self, scope: str, stream: str) -> RetentionDescription:
        """The retention status of a stream now.

        Costs three reads, two queries, a request to the segment stores, and a read of each cut that the rules need.

        Raises:
            NotFoundError: there is no such stream.
            UnavailableError: the stream is being created, a segment store does not answer, or segments are being
                sealed.
        """
        found = self._streams.get(scope, stream).stream
        if not found.state.is_readable:
            raise UnavailableError(
                f"stream {found.scoped_name} is being created: repeat until it is ACTIVE", code="stream_not_ready"
            )
        retained = self._records.load(scope, stream, found.first_segment_number)
        if retained is None:
            raise no_such_stream(scope, stream)
        now_ms = self._clock.now_ms()
        state = retained.retention.state if retained.retention else None
        cuts, passed = cuts_after_head(state.cuts if state else (), retained.head_bytes)
        plan = self._planner.plan(retained, cuts, {}, now_ms)
        policy = retained.stream.configuration.retention
        return RetentionDescription(
            scope=scope,
            stream=stream,
            policy=policy,
            time_ms=now_ms,
            oldest_event_ms=passed[-1].time_ms if passed else _created_or_known(retained),
            kept_bytes=self._tail_bytes(retained, cuts[-1] if cuts else None) - retained.head_bytes,
            retention_set=len(cuts),
            oldest_cut_ms=cuts[0].time_ms if cuts else None,
            newest_cut_ms=cuts[-1].time_ms if cuts else None,
            subscribers=len(self._subscribers.all(retained.stream)),
            next_cut_time_ms=None if state is None or state.due_ms is None else max(now_ms, state.due_ms),
            next=NextTruncation(
                case=plan.decision.case,
                why=_words(plan, policy),
                bytes=plan.size_bytes - retained.head_bytes if plan.target else 0,
                cut=StreamCutView.of(plan.target.cut) if plan.target else None,
            ),
        )

    def _tail_bytes(self, retained: RetainedStream, newest: RetentionCut | None) -> int:
        """The bytes that were written to the stream since its creation."""
        stream = retained.stream
        place = tail_of(self._segment_stores, stream)
        before = self._records.cut(stream, newest) if newest else retained.truncation
        return self._planner.size_at(stream, place, before)


def _created_or_known(retained: RetainedStream) -> int:
    known = retained.retention.state.head_time_ms if retained.retention else 0
    return max(known, retained.stream.creation_time_ms)


def _words(plan: Plan, policy: RetentionPolicy | None) -> str:
    if policy is None:
        return NO_POLICY
    return NOTHING_YET if plan.target is None and plan.decision.cut else WORDS[plan.decision.case]
