"""Runs the steps of accepted requests, for streams, scopes, reader groups and key-value tables alike.

An operation is a value with its steps in order. Each step may run twice, and in two processes at once. A step changes
the record of its resource only if the record has not changed since it was read; its requests to segment stores may be
repeated. So a message may arrive again at any time, and the request continues where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from headrace.controller.acceptance import Acceptance
from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.request_messages import parse_request_message
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import ConflictError, InvalidRequestError, NotFoundError
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind, scoped_resource_name
from headrace.ports.clock import Clock, require_time_for_piece
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue, current_requester
from headrace.ports.segment_stores import SegmentStores
from headrace.ports.workers import Workers

_log = logging.getLogger(__name__)

R = TypeVar("R")
"""The record of a resource as it was read."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What steps work with.

    `queue`: where a step sends the rest of a long request. `workers`: for requests of a step that do not wait for each
    other.

    A step may run a request on another resource with `run_request`, for example on the stream of a reader group.
    """

    records: StreamRecords
    segment_stores: SegmentStores
    clock: Clock
    queue: Callable[[], RequestQueue]
    operations: Mapping[RequestKind, Operation[Any]]
    workers: Workers

    @property
    def store(self) -> MetadataStore:
        return self.records.store

    @property
    def history(self) -> HistoryRecords:
        return self.records.history


def always(_record: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Step(Generic[R]):
    """One step. `run` gets the record as it was just read, with the request pending on it.

    `run` returns the record if it has read it at its end; None makes the engine read it. `applies` says for which
    records the step runs, so that a repeated message continues where the request stopped.
    """

    name: str
    run: Callable[[Tools, R], R | None]
    applies: Callable[[R], bool] = always


@dataclass(frozen=True, slots=True)
class Predecessor(Generic[R]):
    """Work that must be complete before a request runs: on a stream, the batch of commits that it waits for.

    `finish` does a bounded piece of it, also if another process began it.
    """

    is_awaited: Callable[[R, PendingRequest], bool]
    finish: Callable[[Tools, str, str], object]


@dataclass(frozen=True, slots=True)
class Resource(Generic[R]):
    """How the engine reads the record of a kind of resource, by scope and name, and whether a request runs on it."""

    kind: ResourceKind
    find: Callable[[Tools, str, str], R | None]
    is_pending: Callable[[R, PendingRequest], bool]
    predecessor: Predecessor[R] | None


@dataclass(frozen=True, slots=True)
class Undo:
    """How a request is rolled back. `parameters` are those of the request, as JSON values, for a replay.

    `write` rolls it back together with other writes, all or nothing. It raises WriteConflictError if the request has
    made progress since it was read.
    """

    parameters: Mapping[str, Any]
    write: Callable[..., None]


Submit = Callable[[Acceptance, str, str], object]
"""Accepts a request once more, by the scope and name of its resource."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """How a request is rolled back when its message has failed for the last time, and requested again later.

    `undo` reads the resource by scope and name, and writes nothing. It raises IllegalStateError if the request does not
    run or must complete, and ConflictError if it has just ended. `replay` decodes the parameters that a dead letter
    has.
    """

    undo: Callable[[MetadataStore, str, str, PendingRequest], Undo]
    replay: Callable[[Mapping[str, Any]], Submit]


MUST_COMPLETE: Final = None
"""For an operation that is never rolled back. Its steps are repeated until it is complete, and a dead letter of it is
replayed by sending its message again."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[R]):
    """Everything about one kind of request, except for its acceptance, whose parameters are its own.

    The last step ends the request: it removes the pending request from the record, and the intent. No part has a
    default, so that the type checker refuses an operation that does not decide it.
    """

    kind: RequestKind
    resource: Resource[R]
    steps: tuple[Step[R], ...]
    rollback: Rollback | None


class RequestProcessor:
    """Processes the messages of request queues; safe for any number of threads and processes, also on one request."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Do what the message requests; returns when that is complete, also if it was complete before.

        Raises:
            InvalidRequestError: the body is not a request message, or no operation has its kind.
            UnavailableError, ThrottledError, ConflictError: deliver the message again.
            WorkLeftError: the time is over. The progress is stored, and another call continues.
            NotFoundError: a segment that must exist is missing. An operator must look.
            CorruptError: stored records contradict each other. An operator must look.
        """
        run_request(self._tools, *_parse_request(message_body))

    def work(self, message_body: Mapping[str, Any]) -> Iterator[str]:
        """Run one step for each item that is requested. The items are the names of the steps that have run.

        Raises ConflictError if another process was faster, and else the errors of `process`.
        """
        return run_steps(self._tools, *_parse_request(message_body))


def _parse_request(message_body: Mapping[str, Any]) -> tuple[str, str, PendingRequest]:
    """Parse a message; raises InvalidRequestError also for a batch of commits, which has a queue of its own."""
    scope, name, request = parse_request_message(message_body)
    if request.kind is RequestKind.COMMIT_TRANSACTIONS:
        raise InvalidRequestError(f"a {request.kind} request does not come through a request queue")
    return scope, name, request


def run_request(tools: Tools, scope: str, name: str, request: PendingRequest) -> None:
    """Run the steps of a request that are left; raises as `RequestProcessor.process` does."""
    operation = operation_of(tools, request)

    def attempt() -> None:
        try:
            for _ in _steps(tools, operation, scope, name, request):
                continue
        except NotFoundError:
            # A late process finds segments missing that a later deletion removed: the request is complete then.
            if _is_accepted(tools, operation, scope, name, request):
                raise

    # After a conflict another process works on the same request: read again and continue there.
    repeat_on_conflict(attempt, ATTEMPTS_PER_MESSAGE_MAX, ConflictError)


def run_steps(tools: Tools, scope: str, name: str, request: PendingRequest) -> Iterator[str]:
    """Run the steps of a request that are left, one for each item; raises as `RequestProcessor.work` does."""
    return _steps(tools, operation_of(tools, request), scope, name, request)


def operation_of(tools: Tools, request: PendingRequest) -> Operation[Any]:
    """Raises InvalidRequestError if no operation has the kind of the request."""
    operation = tools.operations.get(request.kind)
    if operation is None:
        raise InvalidRequestError(f"no operation processes requests of kind {request.kind}")
    return operation


def _steps(tools: Tools, operation: Operation[R], scope: str, name: str, request: PendingRequest) -> Iterator[str]:
    what = f"{request.kind} of {scoped_resource_name(operation.resource.kind, scope, name)}"
    record = _find_when_its_turn(tools, operation.resource, scope, name, request, what)
    done = ""
    for step in operation.steps:
        if done:
            require_time_for_piece(f"{what} after {done!r}")
            done = ""
        record = record or operation.resource.find(tools, scope, name)
        if record is None or not operation.resource.is_pending(record, request):
            return
        if step.applies(record):
            # The step changes the record, and other processes may have changed it meanwhile.
            record = step.run(tools, record)
            done = step.name
            _note_step(what, done, request)
            yield done


def _note_step(what: str, step: str, request: PendingRequest) -> None:
    """Log a step with who asked for it. On Lambda the extras are fields of the JSON line."""
    requester = current_requester()
    principal, correlation_id = ("", "") if requester is None else (requester.principal, requester.correlation_id)
    told = {"step": step, "request": request.request_id, "requestedBy": principal, "correlationId": correlation_id}
    _log.info("%s: %r is done, requested by %s", what, step, principal or "a former release", extra=told)


def _find_when_its_turn(
    tools: Tools, resource: Resource[R], scope: str, name: str, request: PendingRequest, what: str
) -> R | None:
    record, predecessor = resource.find(tools, scope, name), resource.predecessor
    while record is not None and predecessor is not None and predecessor.is_awaited(record, request):
        predecessor.finish(tools, scope, name)
        require_time_for_piece(f"{what} after a batch of commits")
        record = resource.find(tools, scope, name)
    return record


def _is_accepted(tools: Tools, operation: Operation[R], scope: str, name: str, request: PendingRequest) -> bool:
    resource = operation.resource
    record = resource.find(tools, scope, name)
    if record is None:
        return False
    is_awaiting = resource.predecessor is not None and resource.predecessor.is_awaited(record, request)
    return is_awaiting or resource.is_pending(record, request)
