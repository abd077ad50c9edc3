"""The kinds of resources that requests change: how the engine reads the record of each."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.controller.engine import Predecessor, Resource, Tools
from headrace.controller.steps.transaction_commits import TransactionCommits
from headrace.metadata.key_value_table import KeyValueTableRecords, StoredTable
from headrace.metadata.reader_group import ReaderGroupRecords, StoredGroup
from headrace.metadata.scope import closing_request, scope_guard_key
from headrace.metadata.stream_records import StoredStream
from headrace.model.requests import PendingRequest, ResourceKind
from headrace.ports.metadata_store import Check, Record


@dataclass(frozen=True, slots=True)
class ClosingScope:
    """A scope that is deleted with everything in it, as its guard was read, and the id of the request."""

    scope: str
    guard: Record
    request_id: str

    def is_pending(self, request: PendingRequest) -> bool:
        return self.request_id == request.request_id

    @property
    def unchanged(self) -> Check:
        """A check that the guard has not changed since it was read."""
        return Check(self.guard.key, self.guard.version)


def _find_stream(tools: Tools, scope: str, name: str) -> StoredStream | None:
    return tools.records.find(scope, name)


def _find_scope(tools: Tools, scope: str, _name: str) -> ClosingScope | None:
    guard = tools.store.get(scope_guard_key(scope))
    request_id = closing_request(guard) if guard else None
    return ClosingScope(scope, guard, request_id) if guard and request_id is not None else None


def _find_group(tools: Tools, scope: str, name: str) -> StoredGroup | None:
    return ReaderGroupRecords(tools.store).find(scope, name)


def _find_table(tools: Tools, scope: str, name: str) -> StoredTable | None:
    return KeyValueTableRecords(tools.store).find(scope, name)


def _is_pending_on_stream(stored: StoredStream, request: PendingRequest) -> bool:
    return stored.stream.is_pending(request)


def _waits_for_commits(stored: StoredStream, request: PendingRequest) -> bool:
    return stored.stream.is_following(request)


def _commit_batch(tools: Tools, scope: str, name: str) -> object:
    return TransactionCommits(tools).next_run(scope, name)


STREAM = Resource(
    ResourceKind.STREAM, _find_stream, _is_pending_on_stream, Predecessor(_waits_for_commits, _commit_batch)
)
SCOPE = Resource(ResourceKind.SCOPE, _find_scope, ClosingScope.is_pending, predecessor=None)
READER_GROUP = Resource(ResourceKind.READER_GROUP, _find_group, StoredGroup.is_pending, predecessor=None)
KEY_VALUE_TABLE = Resource(ResourceKind.KEY_VALUE_TABLE, _find_table, StoredTable.is_pending, predecessor=None)
