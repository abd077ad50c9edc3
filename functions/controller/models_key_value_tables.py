"""JSON of the key-value table routes."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.api.key_value_tables import configuration_from_json
from headrace.model.key_value_tables import TableConfiguration


class CreateTableRequest(WireModel):
    tableName: str
    partitionCount: int = Field(description="Segments of the table: it is never scaled")
    primaryKeyLength: int = Field(description="Bytes of every primary key, which decides the segment")
    secondaryKeyLength: int = Field(default=0, description="Bytes of every secondary key")
    rolloverSizeBytes: int = 0

    def configuration(self) -> TableConfiguration:
        return configuration_from_json(self.model_dump())


class KeyValueTable(WireModel):
    scopeName: str
    tableName: str
    partitionCount: int
    primaryKeyLength: int
    secondaryKeyLength: int
    rolloverSizeBytes: int
    state: str
    creationTime: int = Field(description="Milliseconds since 1970")


class TableList(WireModel):
    tables: list[str]
    continuationToken: str | None


class TableSegment(WireModel):
    segmentId: int
    name: str
    low: float
    high: float


class TableSegmentList(WireModel):
    segments: list[TableSegment]
    primaryKeyLength: int
    secondaryKeyLength: int


class TableState(WireModel):
    state: str
