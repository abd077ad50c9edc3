"""Delete a scope with everything in it: reader groups, streams, tables, a bounded number at a time, then the scope.

Each resource is deleted by its own operation, which runs here at once; its intent survives a crash. The deletion of a
resource is accepted on the condition that this request still deletes the scope. So a late process cannot delete what is
created under the scope's name later. No resource is created in the scope meanwhile. A further message deletes the rest.
"""

from __future__ import annotations

import hashlib

from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools, run_request
from headrace.controller.steps.group_streams import ensure_no_stream
from headrace.controller.steps.resources import SCOPE, ClosingScope
from headrace.metadata.intent import Intent, create_intent_write, delete_intent_write
from headrace.metadata.key_value_table import KeyValueTableRecords
from headrace.metadata.reader_group import ReaderGroupRecords
from headrace.metadata.request_messages import request_message_body
from headrace.metadata.scope import (
    close_scope,
    creation_lock_keys,
    delete_scope,
    is_closing,
    listing_partition,
    no_such_scope,
    reader_groups_partition,
    scope_exists,
    scope_guard_key,
    tables_partition,
)
from headrace.model import key_value_tables, reader_groups
from headrace.model.errors import ConflictError
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.ports.clock import require_time_for_piece
from headrace.ports.request_queue import current_requester

RESOURCES_PER_MESSAGE = 20
"""The number of reader groups, streams and tables that one message deletes."""

_ATTEMPTS_MAX = 6
"""Reads of a resource's record in one call: a deletion needs three if no other process works on the resource."""


def accept(acceptance: Acceptance, scope: str) -> None:
    """Accept the deletion; raises as `ScopeDeletionService.delete_scope_recursively` does."""
    acceptance.repeat(lambda: _accept(acceptance, scope))


def _accept(acceptance: Acceptance, scope: str) -> None:
    guard, *locks = acceptance.store.get_many([scope_guard_key(scope), *creation_lock_keys(scope)])
    if guard is None or not scope_exists(guard):
        raise no_such_scope(scope)
    if is_closing(guard):
        return
    # The guard outlives the scope and its version only grows: no two requests on a name have the same id.
    request = PendingRequest(RequestKind.DELETE_SCOPE, f"delete_scope-{guard.version + 1}")
    intent = acceptance.intent(scope, "", request)
    acceptance.store.write(
        *close_scope(scope, guard, locks, request.request_id),
        create_intent_write(intent),
    )
    acceptance.send(intent)


def _delete_resources(tools: Tools, closing: ClosingScope) -> None:
    """Delete as many resources as one message may, and queue a message for the rest; at the end delete the scope."""
    remove = {
        ResourceKind.READER_GROUP: _remove_group,
        ResourceKind.STREAM: _remove_stream,
        ResourceKind.KEY_VALUE_TABLE: _remove_table,
    }
    resources = _resources(tools, closing.scope)
    for index, (resource, name) in enumerate(resources[:RESOURCES_PER_MESSAGE]):
        if index:
            require_time_for_piece(f"deletion of scope {closing.scope}")
        remove[resource](tools, closing, name)
    if len(resources) > RESOURCES_PER_MESSAGE:
        _queue_rest(tools, closing, *resources[-1])
    else:
        _forget(tools, closing)


def _resources(tools: Tools, scope: str) -> list[tuple[ResourceKind, str]]:
    """The resources in the scope, at most one more than a message deletes. Groups first: they subscribe to streams."""
    resources: list[tuple[ResourceKind, str]] = []
    for resource, partition in (
        (ResourceKind.READER_GROUP, reader_groups_partition(scope)),
        (ResourceKind.STREAM, listing_partition(scope)),
        (ResourceKind.KEY_VALUE_TABLE, tables_partition(scope)),
    ):
        wanted = RESOURCES_PER_MESSAGE + 1 - len(resources)
        if wanted > 0:
            resources += [(resource, record.key.sort) for record in tools.store.query(partition, limit=wanted).records]
    return resources


def _remove_stream(tools: Tools, closing: ClosingScope, name: str) -> None:
    ensure_no_stream(tools, closing.scope, name, closing.unchanged)


def _remove_group(tools: Tools, closing: ClosingScope, name: str) -> None:
    records = ReaderGroupRecords(tools.store)
    for _ in range(_ATTEMPTS_MAX):
        stored = records.find(closing.scope, name)
        if stored is None:
            return
        pending = stored.group.pending
        if pending is None:
            after = reader_groups.start_deleting(stored.group, stored.group.group_id, stored.version)
            pending = _pending(closing, name, after.pending)
            records.start(stored, after, _intent(tools, closing, name, pending), closing.unchanged)
        run_request(tools, closing.scope, name, pending)
    raise _busy(ResourceKind.READER_GROUP, closing.scope, name)


def _remove_table(tools: Tools, closing: ClosingScope, name: str) -> None:
    records = KeyValueTableRecords(tools.store)
    for _ in range(_ATTEMPTS_MAX):
        stored = records.find(closing.scope, name)
        if stored is None:
            return
        pending = stored.table.pending
        if pending is None:
            after = key_value_tables.start_deleting(stored.table)
            pending = _pending(closing, name, after.pending)
            records.start(stored, after, _intent(tools, closing, name, pending), closing.unchanged)
        run_request(tools, closing.scope, name, pending)
    raise _busy(ResourceKind.KEY_VALUE_TABLE, closing.scope, name)


def _pending(closing: ClosingScope, name: str, pending: PendingRequest | None) -> PendingRequest:
    if pending is None:
        raise ConflictError(f"the deletion of {closing.scope}/{name} did not begin: reading again")
    return pending


def _intent(tools: Tools, closing: ClosingScope, name: str, pending: PendingRequest) -> Intent:
    return Intent(closing.scope, name, pending, tools.clock.now_ms(), requester=current_requester())


def _queue_rest(tools: Tools, closing: ClosingScope, resource: ResourceKind, name: str) -> None:
    """The queue drops a message that it has seen. The next resource distinguishes this message from those before."""
    text = f"{closing.scope}:{closing.request_id}:{resource}:{name}"
    request = PendingRequest(RequestKind.DELETE_SCOPE, closing.request_id)
    body = request_message_body(Intent(closing.scope, "", request, tools.clock.now_ms()))
    tools.queue().send(group=closing.scope, body=body, deduplication_id=hashlib.sha256(text.encode()).hexdigest())


def _forget(tools: Tools, closing: ClosingScope) -> None:
    tools.store.write(
        *delete_scope(closing.scope, closing.guard.version),
        delete_intent_write(ResourceKind.SCOPE, closing.scope, ""),
    )


def _busy(resource: ResourceKind, scope: str, name: str) -> ConflictError:
    return ConflictError(f"{resource} {scope}/{name} is busy: others are working on it", details={"name": name})


DELETE_SCOPE = Operation(
    RequestKind.DELETE_SCOPE,
    SCOPE,
    (Step("delete resources", _delete_resources),),
    rollback=MUST_COMPLETE,
)
