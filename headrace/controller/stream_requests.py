"""Works on the messages of the request queue: finds the workflow of a request and runs its steps until it is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.controller.operations.commit_transactions import TransactionCommits
from headrace.controller.operations.create_stream import CREATE_STREAM
from headrace.controller.operations.delete_stream import DELETE_STREAM
from headrace.controller.operations.scale_stream import SCALE_STREAM
from headrace.controller.operations.seal_stream import SEAL_STREAM
from headrace.controller.operations.truncate_stream import TRUNCATE_STREAM
from headrace.controller.operations.update_stream import UPDATE_STREAM
from headrace.controller.workflow import Tools
from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.request_messages import parse_message
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.model.errors import ConflictError, NotFoundError
from headrace.model.requests import PendingRequest
from headrace.ports.clock import Clock
from headrace.ports.deadlines import require_time_for_piece
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

WORKFLOWS = {
    workflow.kind: workflow
    for workflow in (CREATE_STREAM, UPDATE_STREAM, TRUNCATE_STREAM, SCALE_STREAM, SEAL_STREAM, DELETE_STREAM)
}


class StreamRequestProcessor:
    """Safe for any number of threads and processes, also on the same request at the same time."""

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores, clock: Clock) -> None:
        records = StreamRecords(store)
        self._tools = Tools(records, records.history, segment_stores, clock)
        self._commits = TransactionCommits(self._tools)

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Do what the message asks; returns when that is done, also if it was done before.

        Raises:
            InvalidRequestError: this is no request message; it will never be one.
            UnavailableError, ThrottledError, ConflictError: deliver the message again.
            WorkLeftError: the time is over; what was done is on record, and another call goes on from there.
            NotFoundError: a segment that must be there is not; a human must look.
            CorruptError: stored records do not fit; a human must look.
        """
        # A conflict tells that somebody else works on the same request: read again and go on from there.
        repeat_on_conflict(lambda: self._run(message_body), ATTEMPTS_PER_MESSAGE_MAX, ConflictError)

    def work(self, message_body: Mapping[str, Any]) -> Iterator[str]:
        """Do one step of the work per item asked for; the items are the names of the steps just done.

        Raises ConflictError when somebody else was faster, and else what `process` raises.
        """
        scope, name, request = parse_message(message_body)
        stored = self._find_when_its_turn(scope, name, request)
        for step in WORKFLOWS[request.kind].steps:
            stored = stored or self._tools.records.find(scope, name)
            if stored is None or not stored.stream.is_pending(request):
                return
            if step.applies(stored.stream):
                # What a step does changes the record, and others may have worked meanwhile.
                stored = step.run(self._tools, stored)
                yield step.name
                require_time_for_piece(f"{request.kind} of {scope}/{name} after {step.name!r}")

    def _find_when_its_turn(self, scope: str, name: str, request: PendingRequest) -> StoredStream | None:
        """The stream; a batch of commits that the request waits for is finished first, also one of another process."""
        stored = self._tools.records.find(scope, name)
        while stored is not None and stored.stream.is_following(request):
            self._commits.next_run(scope, name)
            require_time_for_piece(f"{request.kind} of {scope}/{name} after a batch of commits")
            stored = self._tools.records.find(scope, name)
        return stored

    def _run(self, message_body: Mapping[str, Any]) -> None:
        try:
            for _ in self.work(message_body):
                continue
        except NotFoundError:
            # A processor that is late finds segments gone that a later deletion took: then there is nothing to do.
            if self._is_pending(message_body):
                raise

    def _is_pending(self, message_body: Mapping[str, Any]) -> bool:
        scope, name, request = parse_message(message_body)
        stored = self._tools.records.find(scope, name)
        return stored is not None and (stored.stream.is_pending(request) or stored.stream.is_following(request))
