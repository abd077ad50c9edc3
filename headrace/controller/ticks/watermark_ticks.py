"""The schedule of the watermark tick: it visits the streams that have marks of writers, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.controller.ticks.due_work import DuePage, DueWork, DueWorkTicks, NoteUndecodable
from headrace.metadata.watermark_records import ScheduledStream, read_schedule, replace_scheduled
from headrace.model.backoff import backoff_ms, failures_in_a_row
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Record
from headrace.ports.workers import Workers

TICK_KIND = "watermarks"
_RECORDS_PER_READ = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A stream on the schedule with its record."""

    scheduled: ScheduledStream
    record: Record


def watermark_ticks(
    store: MetadataStore,
    clock: Clock,
    advance: Callable[[ScheduleEntry], None],
    workers: Workers | None = None,
    note_undecodable: NoteUndecodable | None = None,
) -> DueWorkTicks[ScheduleEntry]:
    """Ticks that call `advance` for each stream that is due.

    A tick costs one query, and a lease if there are due streams. A stream that fails costs one write.
    """

    def read(shard: int, after: str) -> DuePage[ScheduleEntry]:
        now_ms = clock.now_ms()
        page = read_schedule(store, shard, after, _RECORDS_PER_READ)
        due = [
            (record.key.sort, ScheduleEntry(scheduled, record))
            for record, scheduled in page.entries
            if scheduled.not_before_ms <= now_ms
        ]
        return DuePage(due, page.next_after, page.undecodable)

    def put_off(entry: ScheduleEntry, error: HeadraceError) -> None:
        scheduled, now_ms = entry.scheduled, clock.now_ms()
        failures = failures_in_a_row(scheduled.failures, scheduled.not_before_ms, now_ms) + 1
        later = replace(scheduled, failures=failures, not_before_ms=now_ms + backoff_ms(failures))
        if failures == 1:  # An unavailable segment store makes thousands of streams fail in each tick.
            _log.warning("no watermark for %s/%s now: %s", scheduled.scope, scheduled.stream, error)
        store.write(replace_scheduled(entry.record.key, later, entry.record.version))

    due_work = DueWork(TICK_KIND, read, advance, put_off, is_cyclic=True)
    return DueWorkTicks(store, clock, due_work, workers, note_undecodable)
