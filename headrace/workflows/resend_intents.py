"""Sends intents again whose message may be lost, bounded per tick; never writes.

A finished workflow removes its intent itself. The queue drops what was sent minutes ago, and a processor that gets a
message for finished work does nothing, so that sending once too often is harmless.
"""

from __future__ import annotations

from headrace.codec.records.intent_record import Intent, intent_of_body, intents_partition
from headrace.metadata.request_messages import RequestQueues, send_intent
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore

INTENTS_READ_PER_TICK_MAX = 10_000
INTENTS_SENT_PER_TICK_MAX = 200
_RECORDS_PER_READ = 1_000
_ROTATION_MS = 10_000
"""When more is due than one tick sends, each tick of about this spacing begins at another place."""


def resend_intents(store: MetadataStore, queues: RequestQueues, clock: Clock, bucket: int, older_than_ms: int) -> int:
    """Send the intents of a bucket that were accepted more than `older_than_ms` ago; how many were sent.

    Raises:
        UnavailableError, ThrottledError: the store or the queue does not answer; a later tick goes on.
    """
    now_ms = clock.now_ms()
    due = [intent for intent in _intents(store, bucket) if now_ms - intent.accepted_ms > older_than_ms]
    # Without the rotation, intents that can never succeed would keep all later ones of their bucket from being sent.
    start = now_ms // _ROTATION_MS * INTENTS_SENT_PER_TICK_MAX % len(due) if due else 0
    chosen = (due[start:] + due[:start])[:INTENTS_SENT_PER_TICK_MAX]
    for intent in chosen:
        send_intent(queues[intent.noun], intent)
    return len(chosen)


def _intents(store: MetadataStore, bucket: int) -> list[Intent]:
    intents: list[Intent] = []
    first: str | None = ""
    while first is not None and len(intents) < INTENTS_READ_PER_TICK_MAX:
        page = store.query(intents_partition(bucket), first=first, limit=_RECORDS_PER_READ)
        intents += [intent_of_body(record.body) for record in page.records]
        first = None if page.next_after is None else f"{page.next_after}\0"
    return intents
