"""The records of reader groups. Only this module writes the current record."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.codec.records.intent_record import Intent
from headrace.codec.records.reader_group_record import (
    group_body,
    group_of_body,
    group_tombstone_body,
    groups_listing_body,
)
from headrace.metadata import keys
from headrace.metadata.intents import create_intent_write, delete_intent_write
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.reader_groups import ReaderGroup, ReaderGroupState
from headrace.model.requests import PendingRequest, ResourceKind
from headrace.ports.metadata_store import Check, Create, Delete, MetadataStore, Record, Replace, Write


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A reader group as it was read, and the version of its record."""

    group: ReaderGroup
    version: int

    def is_pending(self, request: PendingRequest) -> bool:
        return self.group.is_pending(request)

    @property
    def unchanged(self) -> Check:
        """A check that the record is still the one that was read."""
        return Check(keys.reader_group_key(self.group.scope, self.group.name), self.version)


class ReaderGroupRecords:
    """Reads and writes the records of reader groups."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def find(self, scope: str, group: str) -> StoredGroup | None:
        """One read; None if there is no such group."""
        return stored_group(self.store.get(keys.reader_group_key(scope, group)))

    def get(self, scope: str, group: str) -> StoredGroup:
        """One read; raises NotFoundError if there is no such group."""
        found = self.find(scope, group)
        if found is None:
            raise no_such_group(scope, group)
        return found

    def create(self, group: ReaderGroup, tombstone: Record | None, intent: Intent, *others: Write) -> None:
        """Write a new group. It replaces the tombstone that a deleted group of this name left, if there is one."""
        key, body = keys.reader_group_key(group.scope, group.name), group_body(group)
        self.store.write(
            Create(key, body) if tombstone is None else Replace(key, body, tombstone.version),
            Create(keys.reader_group_listing_key(group.scope, group.name), groups_listing_body()),
            create_intent_write(intent),
            *others,
        )

    def start(self, stored: StoredGroup, after: ReaderGroup, intent: Intent, *others: Write) -> None:
        """Write the group and the intent of an operation that starts.

        Raises:
            WriteConflictError: the group has changed since it was read.
        """
        self.store.write(_replace(stored, after), create_intent_write(intent), *others)

    def finish(self, stored: StoredGroup, after: ReaderGroup) -> None:
        """Write the group whose operation is complete, and delete the intent; raises as `start` does."""
        self.store.write(_replace(stored, after), _delete_intent(after))

    def replace_with_tombstone(self, stored: StoredGroup) -> None:
        """Complete the deletion; raises as `start` does, and CorruptError if the group is not being deleted."""
        group = stored.group
        if group.state is not ReaderGroupState.DELETING:
            raise CorruptError(f"refusing to remove reader group {group.scoped_name}: it is {group.state}")
        self.store.write(
            Replace(keys.reader_group_key(group.scope, group.name), group_tombstone_body(), stored.version),
            Delete(keys.reader_group_listing_key(group.scope, group.name), None),
            _delete_intent(group),
        )


def stored_group(record: Record | None) -> StoredGroup | None:
    """The group in a current record; None if there is no record or a tombstone."""
    group = group_of_body(record.body) if record else None
    return StoredGroup(group, record.version) if record and group else None


def no_such_group(scope: str, group: str) -> NotFoundError:
    return NotFoundError(f"there is no reader group {scope}/{group}", details={"scope": scope, "readerGroup": group})


def _replace(stored: StoredGroup, after: ReaderGroup) -> Replace:
    return Replace(keys.reader_group_key(after.scope, after.name), group_body(after), stored.version)


def _delete_intent(group: ReaderGroup) -> Delete:
    return delete_intent_write(ResourceKind.READER_GROUP, group.scope, group.name)
