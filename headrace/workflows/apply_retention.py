"""Applies retention policies, on a tick: a cut at the tail joins the retention set, and what may go is truncated.

Streams are found by when they are due, so that a missed tick is caught up. The truncation is asked for before the state
is written: after a crash between the two, the stream is still due and asks for the same again. A stream that fails is
put off, and each tick of many begins with another stream, so that none keeps others from their turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headrace.codec.records.retention_record import DueStream
from headrace.metadata.retention_plans import Plan, RetentionPlanner, tail_of
from headrace.metadata.retention_records import (
    RetainedStream,
    RetentionRecords,
    StoredRetention,
    check_retention,
    create_cut,
    delete_cuts,
)
from headrace.model.errors import ConflictError, HeadraceError, SealedError, TruncatedError
from headrace.model.retention import Cuts, RetentionCut, cuts_after_head, with_cut
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Check, MetadataStore, Write, WriteConflictError
from headrace.ports.segment_stores import SegmentStores
from headrace.workflows.bucket_lease import Done, under_lease

_log = logging.getLogger(__name__)

RETENTION = "retention"

STREAMS_PER_TICK_MAX = 100
WORK_S_MAX = 30.0
"""After so long a tick begins no other stream; the rest is done by the one that follows at once."""

PUT_OFF_MS = 60_000
"""When a stream is looked at again that was busy or failed."""

CUTS_DELETED_PER_WRITE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for state, index and a new cut; the others go the next time."""

_ROTATION_MS = 10_000

Truncate = Callable[[str, str, Mapping[int, int], Check], object]
"""Asks for a truncation of scope and stream at offsets by segment id, as `StreamService.truncate_stream` does, on the
condition that the record of the retention state has not changed: who registers as a subscriber changes it."""


class RetentionTicks:
    """Works on the streams of a bucket; safe for any number of processes at once."""

    def __init__(
        self, store: MetadataStore, segment_stores: SegmentStores, clock: Clock, truncate: Truncate, period_ms: int
    ) -> None:
        self._store = store
        self._records = RetentionRecords(store)
        self._planner = RetentionPlanner(store)
        self._segment_stores = segment_stores
        self._clock = clock
        self._truncate = truncate
        self._period_ms = period_ms

    def run(self, bucket: int) -> bool:
        """Apply the policies of streams that are due, a bounded number; whether more are due.

        A bucket without due streams costs one query.

        Raises:
            UnavailableError, ThrottledError: the metadata store does not answer; a later tick goes on.
        """
        due = self._records.due(bucket, self._clock.now_ms(), STREAMS_PER_TICK_MAX + 1)
        if not due:
            return False
        return under_lease(self._store, self._clock, RETENTION, bucket, lambda _turn: Done(self._work(due)))

    def _work(self, due: Sequence[DueStream]) -> bool:
        begin_s = self._clock.monotonic_s()
        start = self._clock.now_ms() // _ROTATION_MS % len(due)
        for one in [*due[start:], *due[:start]][:STREAMS_PER_TICK_MAX]:
            if self._clock.monotonic_s() - begin_s > WORK_S_MAX:
                return True
            self._work_on(one)
        return len(due) > STREAMS_PER_TICK_MAX

    def _work_on(self, due: DueStream) -> None:
        try:
            self._apply(due)
        except WriteConflictError:
            return  # Somebody else has changed its retention, and when it is due.
        except HeadraceError as error:
            _log.warning("retention of %s/%s is put off: %s", due.scope, due.stream, error)
            self._put_off(due)

    def _apply(self, due: DueStream) -> None:
        retained = self._records.load(due.scope, due.stream, due.first_segment_number)
        retention = retained.retention if retained else None
        if retained is None:
            self._records.forget_due(due)
            return
        if retention is None or retention.state.due_ms != due.due_ms:
            return  # Somebody else has just looked at it.
        stream = retained.stream
        if stream.state is StreamState.CREATING:
            self._put_off(due)
            return
        if stream.state is StreamState.SEALED or stream.configuration.retention is None:
            # What is sealed is never truncated again, and never looked at again.
            self._records.replace(stream, retention, replace(retention.state, due_ms=None))
            return
        self._apply_policy(retained, retention)

    def _apply_policy(self, retained: RetainedStream, retention: StoredRetention) -> None:
        stream, state, now_ms = retained.stream, retention.state, self._clock.now_ms()
        policy = stream.configuration.retention
        cuts, passed = cuts_after_head(state.cuts, retained.head_bytes)
        known: dict[RetentionCut, Truncation] = {}
        writes: list[Write] = []
        gone: Cuts = ()
        if not cuts or now_ms - cuts[-1].time_ms >= self._period_ms:
            place = self._tail(retained, cuts)
            new = RetentionCut(now_ms, place.size_bytes)
            # Where nothing was written the older cut is the better one: all before it is at least as old.
            if new.size_bytes > (cuts[-1].size_bytes if cuts else retained.head_bytes):
                cuts, gone = with_cut(cuts, new, by_time=policy is not None and policy.is_by_time)
                known[new] = place
                writes.append(create_cut(stream, new, place))
        plan = self._planner.plan(retained, cuts, known, now_ms)
        is_accepted = self._ask(stream, plan, retention)
        dropped, kept = passed[:CUTS_DELETED_PER_WRITE], passed[CUTS_DELETED_PER_WRITE:]
        after = replace(
            state,
            due_ms=now_ms + (self._period_ms if is_accepted else min(PUT_OFF_MS, self._period_ms)),
            head_time_ms=passed[-1].time_ms if passed else state.head_time_ms,
            cuts=(*kept, *cuts),
        )
        self._records.replace(stream, retention, after, *writes, *delete_cuts(stream, (*dropped, *gone)))

    def _tail(self, retained: RetainedStream, cuts: Cuts) -> Truncation:
        """The cut at the tail of the active epoch, counted on from the newest cut, or from the head."""
        stream = retained.stream
        place = tail_of(self._segment_stores, stream)
        before = self._records.cut(stream, cuts[-1]) if cuts else retained.truncation
        return Truncation(place, stream.epoch.number, self._planner.size_at(stream, place, before))

    def _ask(self, stream: Stream, plan: Plan, retention: StoredRetention) -> bool:
        """Ask for the truncation of a plan; False to ask again soon: the stream was busy, or got a subscriber."""
        if plan.target is None:
            return True
        try:
            self._truncate(stream.scope, stream.name, plan.target.cut.offsets, check_retention(stream, retention))
        except ConflictError:
            return False
        except (SealedError, TruncatedError) as error:
            _log.info("retention of %s: nothing to truncate any more: %s", stream.scoped_name, error)
        else:
            _log.info("retention of %s: truncated, %s", stream.scoped_name, plan.decision.case)
        return True

    def _put_off(self, due: DueStream) -> None:
        retained = self._records.load(due.scope, due.stream, due.first_segment_number)
        retention = retained.retention if retained else None
        if retained is None or retention is None or retention.state.due_ms != due.due_ms:
            return
        later = replace(retention.state, due_ms=self._clock.now_ms() + PUT_OFF_MS)
        try:
            self._records.replace(retained.stream, retention, later)
        except WriteConflictError:
            return  # Somebody else has decided when it is due.
