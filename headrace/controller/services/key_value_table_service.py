"""Key-value tables: create, get, list, segments, delete.

Creation and deletion are accepted here and executed by a workflow, as with streams. The segment stores keep the entries
of a table. Clients read and write them over the wire protocol; this service tells them the table's segments.
"""

from __future__ import annotations

from headrace.api.listings import Listing
from headrace.controller.acceptance import Acceptance
from headrace.controller.services.paging import check_page_limit, first_after
from headrace.metadata.format_gate import check_new_name
from headrace.metadata.key_value_table import KeyValueTableRecords, no_such_table
from headrace.metadata.scope import no_such_scope, scope_exists, scope_guard_key, tables_partition
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.names import check_scope_name, check_table_name
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue


class KeyValueTableService:
    """Called by the table routes of the API; safe for any number of threads."""

    def __init__(self, store: MetadataStore, queue: RequestQueue, clock: Clock) -> None:
        self._store = store
        self._records = KeyValueTableRecords(store)
        self._acceptance = Acceptance(store, queue, clock)

    def create_table(self, scope: str, table: str, configuration: TableConfiguration) -> KeyValueTable:
        """Accept a new table; it is CREATING until its segments exist.

        Raises:
            InvalidRequestError: code "invalid_name".
            NotFoundError: there is no such scope.
            AlreadyExistsError: the table exists, in any state.
        """
        check_scope_name(scope)
        check_table_name(table)
        check_new_name(self._store, table)
        from headrace.controller.operations import create_key_value_table

        return create_key_value_table.accept(self._acceptance, scope, table, configuration)

    def get_table(self, scope: str, table: str) -> KeyValueTable:
        """Raises NotFoundError if there is no such table."""
        return self._records.get(scope, table).table

    def segments_of_table(self, scope: str, table: str) -> KeyValueTable:
        """The table, if its segments can be used; costs one read.

        Raises:
            NotFoundError: there is no such table, or its segments are being created or deleted.
        """
        stored = self._records.get(scope, table).table
        if stored.state is not TableState.ACTIVE:
            raise no_such_table(scope, table)
        return stored

    def list_tables(self, scope: str, limit: int, after: str | None = None) -> Listing[str]:
        """Names of the scope's tables in order, those after `after`.

        Raises:
            NotFoundError: there is no such scope.
            InvalidRequestError: a limit outside 1..PAGE_ITEMS_MAX.
        """
        page = self._store.query(
            tables_partition(scope),
            first=first_after(after),
            limit=check_page_limit(limit),
            bytes_max=PAGE_BYTES_MAX,
        )
        if not page.records and not scope_exists(self._store.get(scope_guard_key(scope))):
            raise no_such_scope(scope)
        return Listing(tuple(record.key.sort for record in page.records), page.next_after)

    def delete_table(self, scope: str, table: str) -> KeyValueTable:
        """Accept the deletion of a table; a repeat during the deletion changes nothing.

        Raises:
            NotFoundError: there is no such table.
            ConflictError: the table is still being created; repeat soon.
        """
        from headrace.controller.operations import delete_key_value_table

        return delete_key_value_table.accept(self._acceptance, scope, table)
