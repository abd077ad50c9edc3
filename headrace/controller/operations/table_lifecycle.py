"""Create and delete a key-value table: its segments, then its records.

Both operations repeat whole when they are interrupted: creating a segment that exists and deleting one that is gone
succeed, and no segment name is ever used by two lives of a table.
"""

from __future__ import annotations

from headrace.controller.resource_requests import SubjectRequestProcessor, SubjectStep
from headrace.metadata.key_value_table_records import KeyValueTableRecords, StoredTable
from headrace.model.key_value_tables import KeyValueTable, segments_owner, table_created
from headrace.model.names import segment_name
from headrace.model.requests import RequestKind
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores


class TableLifecycle:
    """The steps of each request; they raise what `SubjectRequestProcessor.process` does."""

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores) -> None:
        self._records = KeyValueTableRecords(store)
        self._segment_stores = segment_stores

    def processor(self) -> SubjectRequestProcessor[StoredTable]:
        steps = {
            RequestKind.CREATE_KEY_VALUE_TABLE: (
                SubjectStep("create segments", self._create_segments),
                SubjectStep("open", self._open),
            ),
            RequestKind.DELETE_KEY_VALUE_TABLE: (
                SubjectStep("delete segments", self._delete_segments),
                SubjectStep("forget", self._records.replace_with_tombstone),
            ),
        }
        return SubjectRequestProcessor(self._records.find, steps)

    def _create_segments(self, stored: StoredTable) -> None:
        configuration = stored.table.configuration
        for name in _segment_names(stored.table):
            self._segment_stores.create_table_segment(name, configuration.key_length, configuration.rollover_size_bytes)

    def _delete_segments(self, stored: StoredTable) -> None:
        for name in _segment_names(stored.table):
            self._segment_stores.delete_table_segment(name)

    def _open(self, stored: StoredTable) -> None:
        self._records.finish(stored, table_created(stored.table))


def _segment_names(table: KeyValueTable) -> list[str]:
    owner = segments_owner(table.name)
    return [segment_name(table.scope, owner, one.segment_id) for one in table.segments]
