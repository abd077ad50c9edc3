"""Works on the messages of the request queues: one table says which processor does the work of each kind of request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.controller.operations.delete_scope import ScopeDeletion
from headrace.controller.operations.reader_group_lifecycle import ReaderGroupLifecycle
from headrace.controller.operations.table_lifecycle import TableLifecycle
from headrace.controller.stream_requests import WORKFLOWS, StreamRequestProcessor
from headrace.metadata.request_messages import parse_message
from headrace.metadata.subscriptions import Subscriptions
from headrace.model.errors import InvalidRequestError
from headrace.model.requests import RequestKind
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue
from headrace.ports.segment_stores import SegmentStores

Process = Callable[[Mapping[str, Any]], None]
"""Does what a message asks; raises as `RequestProcessor.process` does."""


class RequestProcessor:
    """Safe for any number of threads and processes, also on the same request at the same time."""

    def __init__(self, processes: Mapping[RequestKind, Process]) -> None:
        self._processes = dict(processes)

    @property
    def kinds(self) -> frozenset[RequestKind]:
        return frozenset(self._processes)

    def with_kind(self, kind: RequestKind, process: Process) -> RequestProcessor:
        """The same, and one kind more."""
        return RequestProcessor({**self._processes, kind: process})

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Do what the message asks; returns when that is done, also if it was done before.

        Raises:
            InvalidRequestError: this is no request message, or of a kind that no processor knows.
            UnavailableError, ThrottledError, ConflictError: deliver the message again.
            NotFoundError: a segment that must be there is not; a human must look.
            CorruptError: stored records do not fit; a human must look.
        """
        _, _, request = parse_message(message_body)
        process = self._processes.get(request.kind)
        if process is None:
            raise InvalidRequestError(f"requests of kind {request.kind} are worked on by nobody here")
        process(message_body)


def request_processor(
    store: MetadataStore, segment_stores: SegmentStores, clock: Clock, queue: Callable[[], RequestQueue]
) -> RequestProcessor:
    """The dispatch table of everything that the request queues carry; `queue` takes what a long request leaves over."""
    streams = StreamRequestProcessor(store, segment_stores, clock)
    groups = ReaderGroupLifecycle(store, segment_stores, clock, Subscriptions(store, clock)).processor()
    tables = TableLifecycle(store, segment_stores).processor()
    things = RequestProcessor(
        dict.fromkeys(WORKFLOWS, streams.process)
        | dict.fromkeys(groups.steps, groups.process)
        | dict.fromkeys(tables.steps, tables.process)
    )
    scopes = ScopeDeletion(store, segment_stores, clock, queue, things.process)
    return things.with_kind(RequestKind.DELETE_SCOPE, scopes.process)
