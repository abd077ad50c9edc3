"""Key-value tables and their segments. Times are milliseconds since the Unix epoch, lengths are in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.segments import SegmentView
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState, segments_owner
from headrace.model.names import segment_name


def configuration_json(configuration: TableConfiguration) -> dict[str, Any]:
    """The JSON of a table's configuration."""
    return {
        "partitionCount": configuration.partition_count,
        "primaryKeyLength": configuration.primary_key_length,
        "secondaryKeyLength": configuration.secondary_key_length,
        "rolloverSizeBytes": configuration.rollover_size_bytes,
    }


def configuration_from_json(document: Mapping[str, Any]) -> TableConfiguration:
    """Parses the configuration of a table. Raises InvalidRequestError if a value is out of range."""
    return TableConfiguration(
        partition_count=int(document["partitionCount"]),
        primary_key_length=int(document["primaryKeyLength"]),
        secondary_key_length=int(document["secondaryKeyLength"]),
        rollover_size_bytes=int(document["rolloverSizeBytes"]),
    )


@dataclass(frozen=True, slots=True)
class TableView:
    """A key-value table."""

    scope: str
    table: str
    configuration: TableConfiguration
    state: TableState
    creation_time_ms: int

    @classmethod
    def of(cls, table: KeyValueTable) -> TableView:
        return cls(table.scope, table.name, table.configuration, table.state, table.creation_time_ms)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableView:
        return cls(
            str(document["scopeName"]),
            str(document["tableName"]),
            configuration_from_json(document),
            TableState(document["state"]),
            int(document["creationTime"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "scopeName": self.scope,
            "tableName": self.table,
            **configuration_json(self.configuration),
            "state": self.state.value,
            "creationTime": self.creation_time_ms,
        }


@dataclass(frozen=True, slots=True)
class TableSegments:
    """The segments of a table, sorted by key range, and the lengths of its keys in bytes."""

    segments: tuple[SegmentView, ...]
    primary_key_length: int
    secondary_key_length: int

    @classmethod
    def of(cls, table: KeyValueTable) -> TableSegments:
        owner = segments_owner(table.name)
        segments = (SegmentView.of(one, segment_name(table.scope, owner, one.segment_id)) for one in table.segments)
        lengths = table.configuration
        return cls(tuple(segments), lengths.primary_key_length, lengths.secondary_key_length)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableSegments:
        return cls(
            tuple(map(SegmentView.from_json, document["segments"])),
            int(document["primaryKeyLength"]),
            int(document["secondaryKeyLength"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "segments": [one.named_json() for one in self.segments],
            "primaryKeyLength": self.primary_key_length,
            "secondaryKeyLength": self.secondary_key_length,
        }
