"""Delete a scope with everything in it: reader groups, streams, tables, a bounded number at a time, then the scope.

Each thing goes as if its owner had deleted it, through its own workflow, which runs here and now; its intent guards it
against a crash. That it is to go is accepted on the condition that the scope is still being deleted by this request, so
that a processor which slept through the scope's end can't touch what is made under its name later. Nothing is created
in the scope meanwhile, so what is left only gets less; the next message takes the next piece.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from headrace.codec.records.intent_record import Intent, request_fields
from headrace.codec.records.scope_record import ScopeState, closing_request_of_body, guard_body
from headrace.controller.steps.internal_streams import InternalStreams
from headrace.metadata import keys
from headrace.metadata.intents import delete_intent_write
from headrace.metadata.key_value_table_records import KeyValueTableRecords
from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.reader_group_records import ReaderGroupRecords
from headrace.metadata.request_messages import parse_message
from headrace.model import key_value_tables, reader_groups
from headrace.model.errors import ConflictError
from headrace.model.requests import PendingRequest, ResourceKind
from headrace.ports.clock import Clock
from headrace.ports.deadlines import require_time_for_piece
from headrace.ports.metadata_store import Check, Delete, MetadataStore, Record, Replace
from headrace.ports.request_queue import RequestQueue
from headrace.ports.segment_stores import SegmentStores

THINGS_PER_PIECE = 20
"""So many reader groups, streams and tables go with one message."""

_TURNS_MAX = 6
"""Reads of a thing's record in one call: removing it takes three, if nobody else works on it."""


class ScopeDeletion:
    """Safe for any number of threads and processes.

    `process` does what a message on a group or table asks; `queue` is asked for when something is left over.
    """

    def __init__(
        self,
        store: MetadataStore,
        segment_stores: SegmentStores,
        clock: Clock,
        queue: Callable[[], RequestQueue],
        process: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._store = store
        self._streams = InternalStreams(store, segment_stores, clock)
        self._groups = ReaderGroupRecords(store)
        self._tables = KeyValueTableRecords(store)
        self._clock = clock
        self._queue = queue
        self._process = process

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Do a piece of what the message asks, and queue the rest; nothing if it was done before.

        Raises:
            InvalidRequestError: this is no request message.
            UnavailableError, ThrottledError, ConflictError: deliver the message again.
            WorkLeftError: the time is over; what was done is on record, and another call goes on from there.
            CorruptError: stored records do not fit; a human must look.
        """
        # A conflict tells that somebody works on the same scope, or on a thing in it: read again and go on from there.
        repeat_on_conflict(lambda: self._run(message_body), ATTEMPTS_PER_MESSAGE_MAX, ConflictError)

    def _run(self, message_body: Mapping[str, Any]) -> None:
        scope, _, request = parse_message(message_body)
        guard = self._store.get(keys.scope_guard_key(scope))
        if guard is None or closing_request_of_body(guard.body) != request.request_id:
            return
        condition = Check(guard.key, guard.version)
        remove = {
            ResourceKind.READER_GROUP: self._remove_group,
            ResourceKind.STREAM: self._remove_stream,
            ResourceKind.KEY_VALUE_TABLE: self._remove_table,
        }
        things = self._things(scope)
        for index, (resource, name) in enumerate(things[:THINGS_PER_PIECE]):
            if index:
                require_time_for_piece(f"deletion of scope {scope}")
            remove[resource](scope, name, condition)
        if len(things) > THINGS_PER_PIECE:
            self._queue_rest(message_body, scope, request, things[-1])
        else:
            self._forget(scope, guard)

    def _things(self, scope: str) -> list[tuple[ResourceKind, str]]:
        """What is in the scope, one more than a piece at most. Groups first: they subscribe to streams."""
        things: list[tuple[ResourceKind, str]] = []
        for resource, partition in (
            (ResourceKind.READER_GROUP, keys.reader_groups_partition(scope)),
            (ResourceKind.STREAM, keys.listing_partition(scope)),
            (ResourceKind.KEY_VALUE_TABLE, keys.tables_partition(scope)),
        ):
            wanted = THINGS_PER_PIECE + 1 - len(things)
            if wanted > 0:
                things += [(resource, record.key.sort) for record in self._store.query(partition, limit=wanted).records]
        return things

    def _remove_stream(self, scope: str, name: str, condition: Check) -> None:
        self._streams.ensure_gone(scope, name, condition)

    def _remove_group(self, scope: str, name: str, condition: Check) -> None:
        for _ in range(_TURNS_MAX):
            stored = self._groups.find(scope, name)
            if stored is None:
                return
            pending = stored.group.pending
            if pending is None:
                after = reader_groups.start_deleting(stored.group, stored.group.group_id, stored.version)
                self._groups.start(stored, after, self._intent(scope, name, after.pending), condition)
                pending = after.pending
            self._finish(scope, name, pending)
        raise _busy(ResourceKind.READER_GROUP, scope, name)

    def _remove_table(self, scope: str, name: str, condition: Check) -> None:
        for _ in range(_TURNS_MAX):
            stored = self._tables.find(scope, name)
            if stored is None:
                return
            pending = stored.table.pending
            if pending is None:
                after = key_value_tables.start_deleting(stored.table)
                self._tables.start(stored, after, self._intent(scope, name, after.pending), condition)
                pending = after.pending
            self._finish(scope, name, pending)
        raise _busy(ResourceKind.KEY_VALUE_TABLE, scope, name)

    def _intent(self, scope: str, name: str, pending: PendingRequest | None) -> Intent:
        if pending is None:
            raise ConflictError(f"the deletion of {scope}/{name} did not begin: reading again")
        return Intent(scope, name, pending, self._clock.now_ms())

    def _finish(self, scope: str, name: str, pending: PendingRequest | None) -> None:
        if pending is not None:
            self._process(request_fields(scope, name, pending))

    def _queue_rest(
        self,
        message_body: Mapping[str, Any],
        scope: str,
        request: PendingRequest,
        next_thing: tuple[ResourceKind, str],
    ) -> None:
        """The queue drops a message that it has seen: what comes next tells this one from those before."""
        resource, name = next_thing
        identity = hashlib.sha256(f"{scope}:{request.request_id}:{resource}:{name}".encode()).hexdigest()
        self._queue().send(group=scope, body=message_body, deduplication_id=identity)

    def _forget(self, scope: str, guard: Record) -> None:
        self._store.write(
            Replace(guard.key, guard_body(ScopeState.GONE), guard.version),
            Delete(keys.scope_entry_key(scope), None),
            delete_intent_write(ResourceKind.SCOPE, scope, ""),
        )


def _busy(resource: ResourceKind, scope: str, name: str) -> ConflictError:
    return ConflictError(f"{resource} {scope}/{name} is busy: others are working on it", details={"name": name})
