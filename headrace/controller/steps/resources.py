"""The kinds of resources that requests change: how the engine reads the record of each, and rolls a stream back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.controller.engine import Predecessor, Resource, Tools, Undo
from headrace.controller.steps.transaction_commits import TransactionCommits
from headrace.metadata.key_value_table import KeyValueTableRecords, StoredTable
from headrace.metadata.reader_group import ReaderGroupRecords, StoredGroup
from headrace.metadata.scope import closing_request, scope_guard_key
from headrace.metadata.stream_indexes import unindex_tags
from headrace.metadata.stream_records import StoredStream, StreamRecords, delete_intent
from headrace.model.errors import IllegalStateError
from headrace.model.requests import PendingRequest, ResourceKind
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Check, Record, Write


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


def find_running(records: StreamRecords, scope: str, name: str, request: PendingRequest) -> StoredStream:
    """The stream on which `request` runs; one read.

    Raises:
        NotFoundError: the stream does not exist.
        IllegalStateError: the request waits for a batch of commits, or does not run.
    """
    stored = records.get(scope, name)
    if stored.stream.is_following(request):
        raise IllegalStateError(f"{request.request_id} waits for a batch of commits on {stored.stream.scoped_name}")
    if not stored.stream.is_pending(request):
        raise IllegalStateError(f"{request.request_id} does not run on {stored.stream.scoped_name}")
    return stored


def undo_on_stream(
    records: StreamRecords,
    stored: StoredStream,
    after: Stream,
    *writes: Write,
    parameters: Mapping[str, Any],
    added_tags: tuple[str, ...] = (),
) -> Undo:
    """The rollback to `after`, with the `writes` that belong to it and the deletion of the intent.

    `added_tags` may be in the index already. They are more than one write can contain, so they are removed first. A
    late process may add one again in between: the index only says which streams may have a tag.
    """

    def write(*others: Write) -> None:
        unindex_tags(records, stored, added_tags)
        records.replace(stored, after, *writes, delete_intent(stored.stream), *others)

    return Undo(parameters, write)
