"""The current record of a key-value table: state, configuration and pending request, in one read.

A deleted table leaves a tombstone: the first segment number for the next table of that name, and a version that
continues to grow, so that a process that read the record of an earlier incarnation cannot write that of the present
one.
"""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState
from headrace.model.requests import PendingRequest, RequestKind

TABLE_SORT = "current"


def table_partition(scope: str, table: str) -> str:
    return f"key-value-table/{scope}/{table}"


def tables_listing_partition(scope: str) -> str:
    return f"scope-key-value-tables/{scope}"


def tables_listing_body() -> dict[str, Any]:
    return versioned()


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


def table_of_body(body: Body) -> KeyValueTable | None:
    """The table; None for a tombstone."""
    return None if "next_number" in body else decoded("key-value table", body, _table)


def table_tombstone_body(next_segment_number: int) -> dict[str, Any]:
    return versioned(next_number=next_segment_number)


def next_number_of_table_tombstone(body: Body) -> int:
    return decoded("key-value table tombstone", body, lambda fields: int(fields["next_number"]))


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
