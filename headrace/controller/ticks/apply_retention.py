"""The retention tick: adds a cut at the tail to a stream's retention set, and truncates what the policy allows.

Streams are indexed by the time at which they are due, so a missed tick only delays them. The truncation is requested
before the state is written. After a crash between the two, the stream is still due and requests the same truncation
again. A stream that fails is postponed, so that it does not block the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.controller.ticks.due_work import DuePage, DueWork, DueWorkTicks, NoteUndecodable
from headrace.metadata.retention_plans import Plan, RetentionPlanner, start_counting, tail_of
from headrace.metadata.retention_records import (
    RetainedStream,
    RetentionRecords,
    StoredDue,
    StoredRetention,
    check_retention,
    create_cut,
    delete_cuts,
    read_due_streams,
)
from headrace.model.backoff import backoff_ms
from headrace.model.errors import ConflictError, HeadraceError, SealedError, TruncatedError
from headrace.model.retention import Cuts, RetentionCut, cuts_after_head, with_cut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.clock import Clock, is_time_short, require_time_for_piece
from headrace.ports.metadata_store import Check, MetadataStore, Write
from headrace.ports.segment_stores import SegmentStores
from headrace.ports.workers import Workers

_log = logging.getLogger(__name__)

RETENTION = "retention"

_STREAMS_PER_READ = 100
LOOK_S_MAX = 15.0
"""The time limit of one stream. With subscribers and a long history it may need hundreds of reads."""

PUT_OFF_MS = 60_000
"""The time until a busy stream is due again."""

CUTS_DELETED_PER_WRITE = 90
"""Less than WRITES_PER_TRANSACTION_MAX, so that the transaction can also write the state, the index and a new cut. The
other cuts are deleted by later ticks."""

Truncate = Callable[[str, str, Mapping[int, int], Check], object]
"""Requests a truncation of scope and stream at offsets by segment id, as `truncate_stream.accept` does. The check makes
it fail if the retention state has changed. The registration of a subscriber changes that state, so that no truncation
deletes what a new subscriber needs."""


class RetentionTicks:
    """Applies the retention policies of the streams in a bucket; safe for any number of concurrent processes."""

    def __init__(
        self,
        store: MetadataStore,
        segment_stores: SegmentStores,
        clock: Clock,
        truncate: Truncate,
        period_ms: int,
        workers: Workers | None = None,
        note_undecodable: NoteUndecodable | None = None,
    ) -> None:
        due_work = DueWork(RETENTION, self._read, self._apply, self._put_off, entry_s_max=LOOK_S_MAX)
        self._ticks = DueWorkTicks(store, clock, due_work, workers, note_undecodable)
        self._store = store
        self._records = RetentionRecords(store)
        self._planner = RetentionPlanner(store)
        self._segment_stores = segment_stores
        self._clock = clock
        self._truncate = truncate
        self._period_ms = period_ms

    def run(self, bucket: int) -> bool:
        """Apply the policies of the streams that are due, in order; return whether more are due.

        A bucket without due streams costs one query.

        Raises:
            UnavailableError, ThrottledError: the metadata store does not answer; a later tick continues.
        """
        return self._ticks.run(bucket)

    def _read(self, shard: int, after: str) -> DuePage[StoredDue]:
        page = read_due_streams(self._store, shard, self._clock.now_ms(), after, _STREAMS_PER_READ)
        entries = [(record.key.sort, StoredDue(due, record.key)) for record, due in page.entries]
        return DuePage(entries, page.next_after, page.undecodable)

    def _apply(self, entry: StoredDue) -> None:
        due = entry.due
        retained = self._records.load(due.scope, due.stream, due.first_segment_number)
        retention = retained.retention if retained else None
        if retained is None:
            self._records.forget_due(entry)
            return
        if retention is None or retention.state.due_ms != due.due_ms:
            self._records.forget_due(entry)  # Another tick has just processed the stream and written a new entry.
            return
        stream = retained.stream
        if not stream.state.is_readable:
            self._records.put_off(stream, retention, self._clock.now_ms() + PUT_OFF_MS, 0)
            return
        if stream.state.is_sealed or stream.configuration.retention is None:
            # A sealed stream is never truncated again, so it needs no further entry.
            self._records.replace(stream, retention, replace(retention.state, due_ms=None))
            return
        self._apply_policy(retained, retention)

    def _apply_policy(self, retained: RetainedStream, retention: StoredRetention) -> None:
        stream, state, policy = retained.stream, retention.state, retained.stream.configuration.retention
        cuts, passed = cuts_after_head(state.cuts, retained.head_bytes)
        known: dict[RetentionCut, Truncation] = {}
        writes: list[Write] = []
        gone: Cuts = ()
        is_due = not cuts or self._clock.now_ms() - cuts[-1].time_ms >= self._period_ms
        place = self._tail(retained, retention, cuts) if is_due else None
        # After the tail was read. No event before the cut may be younger than the cut, even if the process stalls.
        now_ms = self._clock.now_ms()
        if place is not None:
            new = RetentionCut(now_ms, place.size_bytes)
            # If nothing was written since the last cut, that cut is kept: it is at the same place and older.
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
            counting=None,
        )
        self._records.replace(stream, retention, after, *writes, *delete_cuts(stream, (*dropped, *gone)))

    def _tail(self, retained: RetainedStream, retention: StoredRetention, cuts: Cuts) -> Truncation:
        """The cut at the tail of the active epoch, with the bytes before it, counted from the newest cut or the head.

        A count that an earlier tick has begun is continued. Its cut is then a little before the present tail.

        Raises:
            WorkLeftError: the count is not finished; its progress is stored.
        """
        stream, counting = retained.stream, retention.state.counting
        before = self._records.cut(stream, cuts[-1]) if cuts else retained.truncation
        if counting is None or counting.before_bytes != (before.size_bytes if before else 0):
            counting = start_counting(tail_of(self._segment_stores, stream), stream.epoch.number, before)
        while not counting.is_done:
            counting = self._planner.count_piece(stream, counting, before)
            if not counting.is_done and is_time_short():
                self._records.replace(stream, retention, replace(retention.state, counting=counting))
                require_time_for_piece(f"count of {stream.scoped_name} up to epoch {counting.next_epoch}")
        return Truncation(counting.place, counting.first_epoch, counting.size_bytes)

    def _ask(self, stream: Stream, plan: Plan, retention: StoredRetention) -> bool:
        """Request the truncation of a plan. False means retry soon: the stream was busy, or a subscriber registered."""
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

    def _put_off(self, entry: StoredDue, error: HeadraceError) -> None:
        due, now_ms = entry.due, self._clock.now_ms()
        retained = self._records.load(due.scope, due.stream, due.first_segment_number)
        retention = retained.retention if retained else None
        if retained is None or retention is None or retention.state.due_ms != due.due_ms:
            return
        _log.warning("retention of %s/%s is put off: %s", due.scope, due.stream, error)
        failures = due.failures + 1
        self._records.put_off(retained.stream, retention, now_ms + backoff_ms(failures), failures)
