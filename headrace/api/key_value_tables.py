"""Key-value tables and their segments. Times are milliseconds since the Unix epoch, lengths are in bytes."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.api.pages import Page
from headrace.api.segments import SegmentView
from headrace.model.documents import Document, about
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState, segments_owner
from headrace.model.names import segment_name


class CreateTableRequest(TableConfiguration, frozen=True, kw_only=True):
    table: str = field(name="tableName")

    @property
    def configuration(self) -> TableConfiguration:
        return self.part(TableConfiguration)


class TableView(TableConfiguration, frozen=True, kw_only=True):
    """A key-value table."""

    scope: str = field(name="scopeName")
    table: str = field(name="tableName")
    state: TableState
    creation_time_ms: Annotated[int, about("Milliseconds since 1970")]

    @property
    def configuration(self) -> TableConfiguration:
        return self.part(TableConfiguration)

    @classmethod
    def of(cls, table: KeyValueTable) -> TableView:
        return cls(
            **table.configuration.fields(),
            scope=table.scope,
            table=table.name,
            state=table.state,
            creation_time_ms=table.creation_time_ms,
        )


class TableSegments(Document, frozen=True):
    """The segments of a table, sorted by key range, and the lengths of its keys in bytes."""

    segments: tuple[SegmentView, ...]
    primary_key_length: int
    secondary_key_length: int

    @classmethod
    def of(cls, table: KeyValueTable) -> TableSegments:
        owner = segments_owner(table.name)
        segments = (
            SegmentView.of(segment, segment_name(table.scope, owner, segment.segment_id)) for segment in table.segments
        )
        lengths = table.configuration
        return cls(tuple(segments), lengths.primary_key_length, lengths.secondary_key_length)


class TableList(Page, frozen=True, kw_only=True):
    tables: tuple[str, ...]


class TableStateAnswer(Document, frozen=True):
    state: TableState
