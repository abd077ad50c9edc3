"""The operations: one for each kind of request. Everything else about an operation is in its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headrace.controller.engine import MUST_COMPLETE, Operation, RequestProcessor, Tools, Undo
from headrace.controller.operations.commit_transactions import COMMIT_TRANSACTIONS
from headrace.controller.operations.create_key_value_table import CREATE_KEY_VALUE_TABLE
from headrace.controller.operations.create_reader_group import CREATE_READER_GROUP
from headrace.controller.operations.create_stream import CREATE_STREAM
from headrace.controller.operations.delete_key_value_table import DELETE_KEY_VALUE_TABLE
from headrace.controller.operations.delete_reader_group import DELETE_READER_GROUP
from headrace.controller.operations.delete_scope import DELETE_SCOPE
from headrace.controller.operations.delete_stream import DELETE_STREAM
from headrace.controller.operations.freeze_stream import FREEZE_STREAM
from headrace.controller.operations.scale_stream import SCALE_STREAM
from headrace.controller.operations.seal_stream import SEAL_STREAM
from headrace.controller.operations.truncate_stream import TRUNCATE_STREAM
from headrace.controller.operations.update_reader_group import UPDATE_READER_GROUP
from headrace.controller.operations.update_stream import UPDATE_STREAM
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import IllegalStateError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue
from headrace.ports.segment_stores import SegmentStores
from headrace.ports.workers import InTurn, Workers

UNFREEZE_STREAM = replace(SCALE_STREAM, kind=RequestKind.UNFREEZE_STREAM, rollback=MUST_COMPLETE)
"""A scale of all segments, which `freeze_stream.py` accepts. It has no rollback, since the segments are sealed."""

ALL_OPERATIONS: tuple[Operation[Any], ...] = (
    CREATE_STREAM,
    UPDATE_STREAM,
    TRUNCATE_STREAM,
    SCALE_STREAM,
    COMMIT_TRANSACTIONS,
    SEAL_STREAM,
    FREEZE_STREAM,
    UNFREEZE_STREAM,
    DELETE_STREAM,
    DELETE_SCOPE,
    CREATE_READER_GROUP,
    UPDATE_READER_GROUP,
    DELETE_READER_GROUP,
    CREATE_KEY_VALUE_TABLE,
    DELETE_KEY_VALUE_TABLE,
)

OPERATIONS: Mapping[RequestKind, Operation[Any]] = {operation.kind: operation for operation in ALL_OPERATIONS}


def undo_request(store: MetadataStore, scope: str, name: str, request: PendingRequest) -> Undo:
    """How `request`, which runs on the resource, is rolled back; nothing is written.

    Raises:
        IllegalStateError: the request does not run, or it must complete.
        ConflictError: the request has just ended; read again.
        NotFoundError: the resource does not exist.
    """
    rollback = OPERATIONS[request.kind].rollback
    if rollback is None:
        raise IllegalStateError(f"a {request.kind} request is never rolled back: replay it when its cause is fixed")
    return rollback.undo(store, scope, name, request)


def tools(
    store: MetadataStore,
    segment_stores: SegmentStores,
    clock: Clock,
    queue: Callable[[], RequestQueue],
    workers: Workers | None = None,
) -> Tools:
    """What the steps of a process work with. `queue`: where a step sends the rest of a long request."""
    return Tools(StreamRecords(store), segment_stores, clock, queue, OPERATIONS, workers or InTurn())


def request_processor(
    store: MetadataStore, segment_stores: SegmentStores, clock: Clock, queue: Callable[[], RequestQueue]
) -> RequestProcessor:
    """The processor of all messages of the request queues."""
    return RequestProcessor(tools(store, segment_stores, clock, queue))
