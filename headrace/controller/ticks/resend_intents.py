"""The tick that sends the messages of old intents again, because they may be lost. It is also called the sweeper.

Sending writes no record. An intent whose message the queue does not accept is postponed with a write, so that it does
not delay the others in each tick. A finished workflow deletes its intent itself. A needless message is harmless: the
queue drops a duplicate of the last minutes, and a processor that receives a message for finished work does nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from headrace.controller.ticks.due_work import DuePage, DueWork, DueWorkTicks, NoteUndecodable
from headrace.metadata.intent import Intent, read_intents, replace_intent
from headrace.metadata.request_messages import RequestQueues, send_intent
from headrace.model.backoff import backoff_ms, failures_in_a_row
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Record
from headrace.ports.request_queue import requested_by
from headrace.ports.workers import Workers

TICK = "resend-intents"
_RECORDS_PER_READ = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredIntent:
    """An intent with its record."""

    intent: Intent
    record: Record


class IntentSweep:
    """Runs the ticks; safe for any number of concurrent processes."""

    def __init__(
        self,
        store: MetadataStore,
        queues: RequestQueues,
        clock: Clock,
        older_than_ms: int,
        workers: Workers | None = None,
        note_undecodable: NoteUndecodable | None = None,
    ) -> None:
        """Only intents that were accepted more than `older_than_ms` ago are sent."""
        self._store = store
        self._queues = queues
        self._clock = clock
        self._older_than_ms = older_than_ms
        self._sent: list[str] = []
        due_work = DueWork(TICK, self._read, self._send, self._put_off, is_cyclic=True)
        self._ticks = DueWorkTicks(store, clock, due_work, workers, note_undecodable)

    def run(self, bucket: int) -> tuple[int, bool]:
        """Run one tick; return the number of messages sent, and whether more intents are due.

        A bucket without old intents costs one query per thousand intents.

        Raises:
            UnavailableError, ThrottledError: the store does not answer; a later tick continues.
        """
        self._sent = []
        more = self._ticks.run(bucket)
        return len(self._sent), more

    def _read(self, shard: int, after: str) -> DuePage[StoredIntent]:
        now_ms = self._clock.now_ms()
        page = read_intents(self._store, shard, after, _RECORDS_PER_READ)
        due = [
            (record.key.sort, StoredIntent(intent, record))
            for record, intent in page.entries
            if now_ms - intent.accepted_ms > self._older_than_ms and intent.not_before_ms <= now_ms
        ]
        return DuePage(due, page.next_after, page.undecodable)

    def _send(self, stored: StoredIntent) -> None:
        intent = stored.intent
        with requested_by(intent.requester):
            send_intent(self._queues[intent.resource], intent)
        self._sent.append(intent.scoped_name)

    def _put_off(self, stored: StoredIntent, error: HeadraceError) -> None:
        """Postpone an intent. A write conflict means that its workflow has finished and deleted it."""
        intent, now_ms = stored.intent, self._clock.now_ms()
        _log.warning("message of %s for %s not sent: %s", intent.request.kind, intent.scoped_name, error)
        failures = failures_in_a_row(intent.failures, intent.not_before_ms, now_ms) + 1
        later = replace(intent, failures=failures, not_before_ms=now_ms + backoff_ms(failures))
        self._store.write(replace_intent(stored.record, later))


def resend_intents(store: MetadataStore, queues: RequestQueues, clock: Clock, bucket: int, older_than_ms: int) -> int:
    """One tick; how many were sent. Raises as `IntentSweep.run` does."""
    return IntentSweep(store, queues, clock, older_than_ms).run(bucket)[0]
