"""Sends intents again whose message may be lost: each has its turn, in order.

Sending writes nothing. An intent whose message was not taken is put off by a write, so that it does not take the place
of others in each tick. A finished workflow removes its intent itself. The queue drops what was sent minutes ago, and a
processor that gets a message for finished work does nothing, so that sending once too often is harmless.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from headrace.codec.records.intent_record import Intent, intent_body, intent_of_body, intents_partition
from headrace.controller.ticks.due_work import DuePage, DueWork, DueWorkTicks, NoteUndecodable, decode_each
from headrace.metadata.request_messages import RequestQueues, send_intent
from headrace.model.due_work import backoff_ms, failures_in_a_row
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Record, Replace
from headrace.ports.workers import Workers

TICK = "resend-intents"
_RECORDS_PER_READ = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredIntent:
    """An intent, and its record."""

    intent: Intent
    record: Record


class IntentSweep:
    """Safe for any number of processes at once."""

    def __init__(
        self,
        store: MetadataStore,
        queues: RequestQueues,
        clock: Clock,
        older_than_ms: int,
        workers: Workers | None = None,
        note_undecodable: NoteUndecodable | None = None,
    ) -> None:
        """Sends what was accepted more than `older_than_ms` ago."""
        self._store = store
        self._queues = queues
        self._clock = clock
        self._older_than_ms = older_than_ms
        self._sent: list[str] = []
        due_work = DueWork(TICK, self._read, self._send, self._put_off, is_round=True)
        self._ticks = DueWorkTicks(store, clock, due_work, workers, note_undecodable)

    def run(self, bucket: int) -> tuple[int, bool]:
        """How many were sent, and whether others are due that this tick did not come to.

        A bucket with no old intent costs one query for each thousand.

        Raises:
            UnavailableError, ThrottledError: the store does not answer; a later tick goes on.
        """
        self._sent = []
        more = self._ticks.run(bucket)
        return len(self._sent), more

    def _read(self, shard: int, after: str) -> DuePage[StoredIntent]:
        first, now_ms = f"{after}\0" if after else "", self._clock.now_ms()
        page = self._store.query(intents_partition(shard), first=first, limit=_RECORDS_PER_READ)
        decoded, undecodable = decode_each(page.records, intent_of_body)
        due = [
            (record.key.sort, StoredIntent(intent, record))
            for record, intent in decoded
            if now_ms - intent.accepted_ms > self._older_than_ms and intent.not_before_ms <= now_ms
        ]
        return DuePage(due, page.next_after, undecodable)

    def _send(self, stored: StoredIntent) -> None:
        intent = stored.intent
        send_intent(self._queues[intent.resource], intent)
        self._sent.append(intent.scoped_name)

    def _put_off(self, stored: StoredIntent, error: HeadraceError) -> None:
        """One that is done meanwhile is gone, and a conflict says so."""
        intent, now_ms = stored.intent, self._clock.now_ms()
        _log.warning("message of %s for %s not sent: %s", intent.request.kind, intent.scoped_name, error)
        failures = failures_in_a_row(intent.failures, intent.not_before_ms, now_ms) + 1
        later = replace(intent, failures=failures, not_before_ms=now_ms + backoff_ms(failures))
        self._store.write(Replace(stored.record.key, intent_body(later), stored.record.version))


def resend_intents(store: MetadataStore, queues: RequestQueues, clock: Clock, bucket: int, older_than_ms: int) -> int:
    """One tick; how many were sent. Raises as `IntentSweep.run` does."""
    return IntentSweep(store, queues, clock, older_than_ms).run(bucket)[0]
