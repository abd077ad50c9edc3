"""The records of key-value tables. Only this module writes the current record."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.codec.records.intent_record import Intent
from headrace.codec.records.key_value_table_record import (
    table_body,
    table_of_body,
    table_tombstone_body,
    tables_listing_body,
)
from headrace.metadata import keys
from headrace.metadata.intents import create_intent_write, delete_intent_write
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.key_value_tables import KeyValueTable, TableState
from headrace.model.requests import PendingRequest, ResourceKind
from headrace.ports.metadata_store import Create, Delete, MetadataStore, Record, Replace, Write


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A key-value table as it was read, and the version of its record."""

    table: KeyValueTable
    version: int

    def is_pending(self, request: PendingRequest) -> bool:
        return self.table.is_pending(request)


class KeyValueTableRecords:
    """Reads and writes the records of key-value tables."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def find(self, scope: str, table: str) -> StoredTable | None:
        """One read; None if there is no such table."""
        return stored_table(self.store.get(keys.table_key(scope, table)))

    def get(self, scope: str, table: str) -> StoredTable:
        """One read; raises NotFoundError if there is no such table."""
        found = self.find(scope, table)
        if found is None:
            raise no_such_table(scope, table)
        return found

    def create(self, table: KeyValueTable, tombstone: Record | None, intent: Intent, *others: Write) -> None:
        """Write a new table. It replaces the tombstone that a deleted table of this name left, if there is one."""
        key, body = keys.table_key(table.scope, table.name), table_body(table)
        self.store.write(
            Create(key, body) if tombstone is None else Replace(key, body, tombstone.version),
            Create(keys.table_listing_key(table.scope, table.name), tables_listing_body()),
            create_intent_write(intent),
            *others,
        )

    def start(self, stored: StoredTable, after: KeyValueTable, intent: Intent, *others: Write) -> None:
        """Write the table and the intent of an operation that starts.

        Raises:
            WriteConflictError: the table has changed since it was read.
        """
        self.store.write(_replace(stored, after), create_intent_write(intent), *others)

    def finish(self, stored: StoredTable, after: KeyValueTable) -> None:
        """Write the table whose operation is complete, and delete the intent; raises as `start` does."""
        self.store.write(_replace(stored, after), _delete_intent(after))

    def replace_with_tombstone(self, stored: StoredTable) -> None:
        """Complete the deletion; raises as `start` does, and CorruptError if the table is not being deleted."""
        table = stored.table
        if table.state is not TableState.DELETING:
            raise CorruptError(f"refusing to remove key-value table {table.scoped_name}: it is {table.state}")
        tombstone = table_tombstone_body(table.next_segment_number)
        self.store.write(
            Replace(keys.table_key(table.scope, table.name), tombstone, stored.version),
            Delete(keys.table_listing_key(table.scope, table.name), None),
            _delete_intent(table),
        )


def stored_table(record: Record | None) -> StoredTable | None:
    """The table in a current record; None if there is no record or a tombstone."""
    table = table_of_body(record.body) if record else None
    return StoredTable(table, record.version) if record and table else None


def no_such_table(scope: str, table: str) -> NotFoundError:
    return NotFoundError(f"there is no key-value table {scope}/{table}", details={"scope": scope, "table": table})


def _replace(stored: StoredTable, after: KeyValueTable) -> Replace:
    return Replace(keys.table_key(after.scope, after.name), table_body(after), stored.version)


def _delete_intent(table: KeyValueTable) -> Delete:
    return delete_intent_write(ResourceKind.KEY_VALUE_TABLE, table.scope, table.name)
