"""Sends intents again whose message may be lost: each has its turn, in order, and none is written.

A finished workflow removes its intent itself. The queue drops what was sent minutes ago, and a processor that gets a
message for finished work does nothing, so that sending once too often is harmless.
"""

from __future__ import annotations

import logging

from headrace.codec.records.intent_record import Intent, intent_of_body, intents_partition
from headrace.metadata.request_messages import RequestQueues, send_intent
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.workers import Workers
from headrace.workflows.due_work import DuePage, DueWork, DueWorkTicks

TICK = "resend-intents"
_RECORDS_PER_READ = 1_000

_log = logging.getLogger(__name__)


class IntentSweep:
    """Safe for any number of processes at once."""

    def __init__(
        self,
        store: MetadataStore,
        queues: RequestQueues,
        clock: Clock,
        older_than_ms: int,
        workers: Workers | None = None,
    ) -> None:
        """Sends what was accepted more than `older_than_ms` ago."""
        self._store = store
        self._queues = queues
        self._clock = clock
        self._older_than_ms = older_than_ms
        self._sent: list[str] = []
        self._ticks = DueWorkTicks(
            store, clock, DueWork(TICK, self._read, self._send, self._left, is_round=True), workers
        )

    def run(self, bucket: int) -> tuple[int, bool]:
        """How many were sent, and whether others are due that this tick did not come to.

        A bucket with no old intent costs one query for each thousand.

        Raises:
            UnavailableError, ThrottledError: the store does not answer; a later tick goes on.
        """
        self._sent = []
        more = self._ticks.run(bucket)
        return len(self._sent), more

    def _read(self, shard: int, after: str) -> DuePage[Intent]:
        first, now_ms = f"{after}\0" if after else "", self._clock.now_ms()
        page = self._store.query(intents_partition(shard), first=first, limit=_RECORDS_PER_READ)
        found = [(record.key.sort, intent_of_body(record.body)) for record in page.records]
        due = [(place, intent) for place, intent in found if now_ms - intent.accepted_ms > self._older_than_ms]
        return DuePage(due, page.next_after)

    def _send(self, intent: Intent) -> None:
        send_intent(self._queues[intent.noun], intent)
        self._sent.append(intent.scoped_name)

    def _left(self, intent: Intent, error: HeadraceError) -> None:
        """Its turn comes again with the next round: that nothing was sent needs no note."""
        _log.warning("message of %s for %s not sent: %s", intent.request.kind, intent.scoped_name, error)


def resend_intents(store: MetadataStore, queues: RequestQueues, clock: Clock, bucket: int, older_than_ms: int) -> int:
    """One tick; how many were sent. Raises as `IntentSweep.run` does."""
    return IntentSweep(store, queues, clock, older_than_ms).run(bucket)[0]
