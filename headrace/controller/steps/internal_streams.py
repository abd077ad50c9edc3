"""Streams that something else owns, such as the state of a reader group: made and removed within the owner's workflow.

They are streams like any other, with the same records and workflows, but not in the list of their scope. Each change is
accepted on the owner's condition, in the same transaction, so that a processor which slept through the owner's life
can't bring its stream back; then the stream's own workflow runs here and now, while its intent guards it against a
crash.
"""

from __future__ import annotations

from headrace.codec.records.stream_record import next_number_of_tombstone
from headrace.controller.operations.commit_transactions import TransactionCommits
from headrace.controller.stream_requests import StreamRequestProcessor
from headrace.controller.workflow import Tools
from headrace.metadata import keys
from headrace.metadata.history_records import create_epoch
from headrace.metadata.request_messages import message_body
from headrace.metadata.stream_records import (
    StoredStream,
    StreamRecords,
    create_current,
    create_intent,
)
from headrace.model.errors import ConflictError
from headrace.model.requests import RequestKind
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream, new_stream, start_deleting, started
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Check, MetadataStore, Record
from headrace.ports.segment_stores import SegmentStores

_TURNS_MAX = 12
"""Reads of a stream's record in one call: removing a stream takes five, if nobody else works on it."""


class InternalStreams:
    """Safe for any number of threads and processes, also on the same stream at the same time."""

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores, clock: Clock) -> None:
        self._store = store
        self._records = StreamRecords(store)
        self._processor = StreamRequestProcessor(store, segment_stores, clock)
        self._commits = TransactionCommits(Tools(self._records, self._records.history, segment_stores, clock))
        self._clock = clock

    def ensure(self, scope: str, name: str, configuration: StreamConfiguration, condition: Check) -> None:
        """The stream exists and can be written to, unless somebody has sealed it.

        Raises:
            WriteConflictError: the condition does not hold.
            ConflictError: others work on the stream; repeat.
        """
        for _ in range(_TURNS_MAX):
            record = self._store.get(keys.current_key(scope, name))
            stored = self._records.stored(record)
            if stored is None:
                self._accept_creation(scope, name, configuration, record, condition)
            elif not self._finish_pending(stored.stream):
                return
        raise _busy(scope, name)

    def ensure_gone(self, scope: str, name: str, condition: Check) -> None:
        """There is no such stream any more, and no segment of it. Raises as `ensure` does."""
        for _ in range(_TURNS_MAX):
            stored = self._records.find(scope, name)
            if stored is None:
                return
            if not self._finish_pending(stored.stream):
                self._accept_removal(stored, condition)
        raise _busy(scope, name)

    def _finish_pending(self, stream: Stream) -> bool:
        """Do what runs on the stream; whether there was anything."""
        if stream.pending is None:
            return False
        if stream.pending.kind is RequestKind.COMMIT_TRANSACTIONS:
            # It has messages of another kind; whoever comes upon a run of commits may finish it.
            self._commits.next_run(stream.scope, stream.name)
            return True
        _, intent = create_intent(stream, self._clock.now_ms())
        self._processor.process(message_body(intent))
        return True

    def _accept_creation(
        self, scope: str, name: str, configuration: StreamConfiguration, tombstone: Record | None, condition: Check
    ) -> None:
        first_number = next_number_of_tombstone(tombstone.body) if tombstone else 0
        now_ms = self._clock.now_ms()
        stream = new_stream(scope, name, configuration, first_number, now_ms)
        write, _ = create_intent(stream, now_ms)
        self._store.write(condition, *create_current(stream, tombstone), *create_epoch(stream, stream.epoch), write)

    def _accept_removal(self, stored: StoredStream, condition: Check) -> None:
        is_sealed = stored.stream.state is StreamState.SEALED
        after = (
            start_deleting(stored.stream, stored.version)
            if is_sealed
            else started(stored.stream, stored.version, RequestKind.SEAL_STREAM)
        )
        write, _ = create_intent(after, self._clock.now_ms())
        self._records.replace(stored, after, write, condition)


def _busy(scope: str, name: str) -> ConflictError:
    return ConflictError(f"stream {scope}/{name} is busy: others are working on it", details={"stream": name})
