"""Key-value tables: create, get, list, segments, delete.

Creation and deletion are accepted here and done by a workflow, as with streams. The entries of a table are the business
of the segment stores: clients reach them over the wire protocol, guided by the segments that are told here.
"""

from __future__ import annotations

from headrace.api.pages import Listing
from headrace.codec.records.intent_record import Intent
from headrace.codec.records.key_value_table_record import next_number_of_table_tombstone
from headrace.controller.services.acceptance import send_or_leave
from headrace.controller.services.paging import check_page_limit, first_after
from headrace.controller.services.scopes import keep_scope, no_such_scope, scope_exists
from headrace.metadata import keys
from headrace.metadata.key_value_table_records import KeyValueTableRecords, no_such_table, stored_table
from headrace.metadata.optimistic_retry import repeat_on_conflict
from headrace.model.errors import AlreadyExistsError, CorruptError
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState, new_table, start_deleting
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.names import check_scope_name, check_table_name
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue


class KeyValueTableService:
    """What the API's table routes call; safe for any number of threads."""

    def __init__(self, store: MetadataStore, queue: RequestQueue, clock: Clock) -> None:
        self._store = store
        self._records = KeyValueTableRecords(store)
        self._queue = queue
        self._clock = clock

    def create_table(self, scope: str, table: str, configuration: TableConfiguration) -> KeyValueTable:
        """Accept a new table; it is CREATING until its segments exist.

        Raises:
            InvalidRequestError: code "invalid_name".
            NotFoundError: there is no such scope.
            AlreadyExistsError: the table exists, in any state.
        """
        check_scope_name(scope)
        check_table_name(table)
        return repeat_on_conflict(lambda: self._try_to_create(scope, table, configuration))

    def get_table(self, scope: str, table: str) -> KeyValueTable:
        """Raises NotFoundError if there is no such table."""
        return self._records.get(scope, table).table

    def segments_of_table(self, scope: str, table: str) -> KeyValueTable:
        """The table, once its segments can be used; one read.

        Raises:
            NotFoundError: there is no such table, its segments are not there yet, or they are being deleted.
        """
        found = self._records.get(scope, table).table
        if found.state is not TableState.ACTIVE:
            raise no_such_table(scope, table)
        return found

    def list_tables(self, scope: str, limit: int, after: str | None = None) -> Listing[str]:
        """Names of the scope's tables in order, those after `after`.

        Raises:
            NotFoundError: there is no such scope.
            InvalidRequestError: a limit outside 1..PAGE_ITEMS_MAX.
        """
        page = self._store.query(
            keys.tables_partition(scope),
            first=first_after(after),
            limit=check_page_limit(limit),
            bytes_max=PAGE_BYTES_MAX,
        )
        if not page.records and not scope_exists(self._store.get(keys.scope_guard_key(scope))):
            raise no_such_scope(scope)
        return Listing(tuple(record.key.sort for record in page.records), page.next_after)

    def delete_table(self, scope: str, table: str) -> KeyValueTable:
        """Accept that the table is to disappear; repeated while that is going on, it changes nothing.

        Raises:
            NotFoundError: there is no such table.
            ConflictError: the table is still being created; repeat soon.
        """
        return repeat_on_conflict(lambda: self._try_to_delete(scope, table))

    def _try_to_create(self, scope: str, name: str, configuration: TableConfiguration) -> KeyValueTable:
        guard, door, current = self._store.get_many(
            [keys.scope_guard_key(scope), keys.scope_door_key(scope, name), keys.table_key(scope, name)]
        )
        if guard is None or not scope_exists(guard):
            raise no_such_scope(scope)
        if stored_table(current) is not None:
            raise AlreadyExistsError(f"key-value table {scope}/{name} exists", details={"scope": scope, "table": name})
        first_number = next_number_of_table_tombstone(current.body) if current else 0
        created = new_table(scope, name, configuration, first_number, self._clock.now_ms())
        intent = self._intent(created)
        self._records.create(created, current, intent, *keep_scope(scope, name, guard, door))
        send_or_leave(self._queue, intent)
        return created

    def _try_to_delete(self, scope: str, name: str) -> KeyValueTable:
        stored = self._records.get(scope, name)
        if stored.table.state is TableState.DELETING:
            return stored.table
        deleting = start_deleting(stored.table)
        intent = self._intent(deleting)
        self._records.start(stored, deleting, intent)
        send_or_leave(self._queue, intent)
        return deleting

    def _intent(self, table: KeyValueTable) -> Intent:
        if table.pending is None:
            raise CorruptError(f"key-value table {table.scoped_name} has no pending request to write an intent for")
        return Intent(table.scope, table.name, table.pending, self._clock.now_ms())
