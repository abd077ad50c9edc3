"""Delete a key-value table: its segments, then its records.

An interrupted deletion repeats all requests to the segment stores: deleting a segment that does not exist succeeds. No
two incarnations of a table use the same segment name.
"""

from __future__ import annotations

from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import KEY_VALUE_TABLE
from headrace.metadata.key_value_table import KeyValueTableRecords, StoredTable
from headrace.model.key_value_tables import KeyValueTable, TableState, start_deleting
from headrace.model.requests import RequestKind


def accept(acceptance: Acceptance, scope: str, table: str) -> KeyValueTable:
    """Accept the deletion; raises as `KeyValueTableService.delete_table` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, table))


def _accept(acceptance: Acceptance, scope: str, name: str) -> KeyValueTable:
    records = KeyValueTableRecords(acceptance.store)
    stored = records.get(scope, name)
    if stored.table.state is TableState.DELETING:
        return stored.table
    deleting = start_deleting(stored.table)
    intent = acceptance.intent(scope, name, deleting.pending)
    records.start(stored, deleting, intent)
    acceptance.send(intent)
    return deleting


def _delete_segments(tools: Tools, stored: StoredTable) -> None:
    for name in stored.table.segment_names:
        tools.segment_stores.delete_table_segment(name)


def _forget(tools: Tools, stored: StoredTable) -> None:
    KeyValueTableRecords(tools.store).replace_with_tombstone(stored)


DELETE_KEY_VALUE_TABLE = Operation(
    RequestKind.DELETE_KEY_VALUE_TABLE,
    KEY_VALUE_TABLE,
    (
        Step("delete segments", _delete_segments),
        Step("forget", _forget),
    ),
    rollback=MUST_COMPLETE,
)
