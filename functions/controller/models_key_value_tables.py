"""JSON of the key-value table routes and the way to and from values."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.api.pages import Listing
from headrace.model import key_value_tables as tables
from headrace.model.names import segment_name


class CreateTableRequest(WireModel):
    tableName: str
    partitionCount: int = Field(description="Segments of the table: it is never scaled")
    primaryKeyLength: int = Field(description="Bytes of every primary key, which decides the segment")
    secondaryKeyLength: int = Field(default=0, description="Bytes of every secondary key")
    rolloverSizeBytes: int = 0

    def configuration(self) -> tables.TableConfiguration:
        return tables.TableConfiguration(
            self.partitionCount, self.primaryKeyLength, self.secondaryKeyLength, self.rolloverSizeBytes
        )


class KeyValueTable(WireModel):
    scopeName: str
    tableName: str
    partitionCount: int
    primaryKeyLength: int
    secondaryKeyLength: int
    rolloverSizeBytes: int
    state: str
    creationTime: int = Field(description="Milliseconds since 1970")


def table(found: tables.KeyValueTable) -> KeyValueTable:
    configuration = found.configuration
    return KeyValueTable(
        scopeName=found.scope,
        tableName=found.name,
        partitionCount=configuration.partition_count,
        primaryKeyLength=configuration.primary_key_length,
        secondaryKeyLength=configuration.secondary_key_length,
        rolloverSizeBytes=configuration.rollover_size_bytes,
        state=found.state.value,
        creationTime=found.creation_time_ms,
    )


class TableList(WireModel):
    tables: list[str]
    continuationToken: str | None


def table_list(page: Listing[str]) -> TableList:
    return TableList(tables=list(page.items), continuationToken=page.next_after)


class TableSegment(WireModel):
    segmentId: int
    name: str
    low: float
    high: float


class TableSegmentList(WireModel):
    segments: list[TableSegment]
    primaryKeyLength: int
    secondaryKeyLength: int


def table_segment_list(found: tables.KeyValueTable) -> TableSegmentList:
    owner = tables.segments_owner(found.name)
    return TableSegmentList(
        segments=[
            TableSegment(
                segmentId=one.segment_id,
                name=segment_name(found.scope, owner, one.segment_id),
                low=one.key_range.low,
                high=one.key_range.high,
            )
            for one in found.segments
        ],
        primaryKeyLength=found.configuration.primary_key_length,
        secondaryKeyLength=found.configuration.secondary_key_length,
    )


class TableState(WireModel):
    state: str
