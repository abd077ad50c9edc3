"""The current record of a key-value table: state, configuration and pending request, in one read.

A deleted table leaves a tombstone. It has the first segment number of the next table of that name. Its version
continues to grow, so that a process that read the record of an earlier incarnation cannot write that of the present
one. Only this module writes the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.intent import Intent, create_intent_write, delete_intent_write
from headrace.metadata.record_layout import decoded, versioned
from headrace.metadata.scope import name_body, table_listing_key
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState
from headrace.model.names import check_known_name
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace, Write

TABLE_SORT = "current"


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A key-value table as it was read, and the version of its record."""

    table: KeyValueTable
    version: int

    def is_pending(self, request: PendingRequest) -> bool:
        return self.table.is_pending(request)


def table_partition(scope: str, table: str) -> str:
    return f"key-value-table/{check_known_name('scope', scope)}/{check_known_name('key-value table', table)}"


def table_key(scope: str, table: str) -> Key:
    return Key(table_partition(scope, table), TABLE_SORT)


def table_body(table: KeyValueTable) -> dict[str, Any]:
    pending, configuration = table.pending, table.configuration
    return versioned(
        scope=table.scope,
        name=table.name,
        state=str(table.state),
        configuration={
            "partitions": configuration.partition_count,
            "primary_key_length": configuration.primary_key_length,
            "secondary_key_length": configuration.secondary_key_length,
            "rollover_size_bytes": configuration.rollover_size_bytes,
        },
        created=table.creation_time_ms,
        first_number=table.first_segment_number,
        pending=[str(pending.kind), pending.request_id] if pending else None,
    )


def decode_table(body: Body) -> KeyValueTable | None:
    """The table; None for a tombstone."""
    return None if "next_number" in body else decoded("key-value table", body, _table)


def table_tombstone_body(next_segment_number: int) -> dict[str, Any]:
    return versioned(next_number=next_segment_number)


def decode_table_tombstone(body: Body) -> int:
    return decoded("key-value table tombstone", body, lambda fields: int(fields["next_number"]))


class KeyValueTableRecords:
    """Reads and writes the records of key-value tables."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def find(self, scope: str, table: str) -> StoredTable | None:
        """One read; None if there is no such table."""
        return stored_table(self.store.get(table_key(scope, table)))

    def get(self, scope: str, table: str) -> StoredTable:
        """One read; raises NotFoundError if there is no such table."""
        stored = self.find(scope, table)
        if stored is None:
            raise no_such_table(scope, table)
        return stored

    def create(self, table: KeyValueTable, tombstone: Record | None, intent: Intent, *others: Write) -> None:
        """Write a new table. It replaces the tombstone that a deleted table of this name left, if there is one."""
        key, body = table_key(table.scope, table.name), table_body(table)
        self.store.write(
            Create(key, body) if tombstone is None else Replace(key, body, tombstone.version),
            Create(table_listing_key(table.scope, table.name), name_body()),
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
            Replace(table_key(table.scope, table.name), tombstone, stored.version),
            Delete(table_listing_key(table.scope, table.name), None),
            _delete_intent(table),
        )


def stored_table(record: Record | None) -> StoredTable | None:
    """The table in a current record; None if there is no record or a tombstone."""
    table = decode_table(record.body) if record else None
    return StoredTable(table, record.version) if record and table else None


def no_such_table(scope: str, table: str) -> NotFoundError:
    return NotFoundError(f"there is no key-value table {scope}/{table}", details={"scope": scope, "table": table})


def _replace(stored: StoredTable, after: KeyValueTable) -> Replace:
    return Replace(table_key(after.scope, after.name), table_body(after), stored.version)


def _delete_intent(table: KeyValueTable) -> Delete:
    return delete_intent_write(ResourceKind.KEY_VALUE_TABLE, table.scope, table.name)


def _table(body: Body) -> KeyValueTable:
    pending, configuration = body["pending"], body["configuration"]
    return KeyValueTable(
        scope=str(body["scope"]),
        name=str(body["name"]),
        state=TableState(body["state"]),
        configuration=TableConfiguration(
            partition_count=int(configuration["partitions"]),
            primary_key_length=int(configuration["primary_key_length"]),
            secondary_key_length=int(configuration["secondary_key_length"]),
            rollover_size_bytes=int(configuration["rollover_size_bytes"]),
        ),
        creation_time_ms=int(body["created"]),
        first_segment_number=int(body["first_number"]),
        pending=PendingRequest(RequestKind(pending[0]), str(pending[1])) if pending is not None else None,
    )


def first_table_segment_number(tombstone: Record | None) -> int:
    """The first segment number of a new table, whose name had no table before, or one that left a tombstone."""
    return decode_table_tombstone(tombstone.body) if tombstone else 0
