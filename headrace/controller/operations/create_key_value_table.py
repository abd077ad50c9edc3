"""Create a key-value table: its segments, then it is ACTIVE.

An interrupted creation repeats all requests to the segment stores: creating a segment that exists succeeds. A process
may stall before such a request, while others create the table and delete it. So the table is read afterwards, and
segments that no deletion would remove any more are deleted again. That is safe, because their names are never reused.
"""

from __future__ import annotations

from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import KEY_VALUE_TABLE
from headrace.metadata.key_value_table import (
    KeyValueTableRecords,
    StoredTable,
    first_table_segment_number,
    stored_table,
    table_key,
)
from headrace.metadata.scope import creation_lock_key, keep_scope, no_such_scope, scope_exists, scope_guard_key
from headrace.model.errors import AlreadyExistsError, UnavailableError
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState, new_table, table_created
from headrace.model.requests import RequestKind


def accept(acceptance: Acceptance, scope: str, table: str, configuration: TableConfiguration) -> KeyValueTable:
    """Accept a new table; raises as `KeyValueTableService.create_table` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, table, configuration))


def _accept(acceptance: Acceptance, scope: str, name: str, configuration: TableConfiguration) -> KeyValueTable:
    guard, lock, current = acceptance.store.get_many(
        [scope_guard_key(scope), creation_lock_key(scope, name), table_key(scope, name)]
    )
    if guard is None or not scope_exists(guard):
        raise no_such_scope(scope)
    if stored_table(current) is not None:
        raise AlreadyExistsError(f"key-value table {scope}/{name} exists", details={"scope": scope, "table": name})
    first_number = first_table_segment_number(current)
    created = new_table(scope, name, configuration, first_number, acceptance.clock.now_ms())
    intent = acceptance.intent(scope, name, created.pending)
    KeyValueTableRecords(acceptance.store).create(created, current, intent, *keep_scope(scope, name, guard, lock))
    acceptance.send(intent)
    return created


def _create_segments(tools: Tools, stored: StoredTable) -> None:
    table, configuration = stored.table, stored.table.configuration
    try:
        for name in table.segment_names:
            tools.segment_stores.create_table_segment(name, configuration.key_length, configuration.rollover_size_bytes)
    except UnavailableError:
        _delete_unwanted(tools, table)  # some of the requests may have been carried out
        raise
    _delete_unwanted(tools, table)


def _delete_unwanted(tools: Tools, table: KeyValueTable) -> None:
    """Delete the segments of a table that is not there any more, or of which a deletion has begun."""
    stored = KeyValueTableRecords(tools.store).find(table.scope, table.name)
    present = None if stored is None or stored.table.state is TableState.DELETING else stored.table
    if present is None or present.first_segment_number != table.first_segment_number:
        for name in table.segment_names:
            tools.segment_stores.delete_table_segment(name)


def _open(tools: Tools, stored: StoredTable) -> None:
    KeyValueTableRecords(tools.store).finish(stored, table_created(stored.table))


CREATE_KEY_VALUE_TABLE = Operation(
    RequestKind.CREATE_KEY_VALUE_TABLE,
    KEY_VALUE_TABLE,
    (
        Step("create segments", _create_segments),
        Step("open", _open),
    ),
    rollback=MUST_COMPLETE,
)
