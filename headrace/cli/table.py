"""`headrace table`: create, list, get, segments, endpoint, delete."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.api.key_value_tables import TableView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, state_text, time_text
from headrace.cli.parameters import NoWait, ScopeName, SegmentId, TableName, number, positive, rollover_size_option
from headrace.cli.segment import (
    SEGMENT_COLUMNS,
    endpoint_details,
    endpoint_document,
    segment_document,
    segment_rows,
)
from headrace.cli.session import Session
from headrace.model.key_value_tables import TableConfiguration

app = new_app()


@action(app, "create", examples=["headrace table create shop/prices --primary-key-length 8 --partitions 4"])
def create(
    session: Session,
    table: TableName,
    primary_key_length: Annotated[
        int, typer.Option(parser=positive, metavar="BYTES", help="length of all primary keys")
    ],
    secondary_key_length: Annotated[
        int, typer.Option(parser=number, metavar="BYTES", help="length of all secondary keys")
    ] = 0,
    partitions: Annotated[int, typer.Option(parser=positive, metavar="N", help="number of segments")] = 1,
    rollover_size: Annotated[int, rollover_size_option("kept for Pravega's clients, for example 4MiB")] = 0,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="accept an existing table without changing it")] = False,
    no_wait: NoWait = False,
) -> Outcome:
    """Create a table. Its configuration cannot be changed later."""
    configuration = TableConfiguration(partitions, primary_key_length, secondary_key_length, rollover_size)
    view = session.client.admin.tables.create(*table, configuration, exist_ok=exist_ok, wait=not no_wait)
    return _shown(view)


@action(app, "list", examples=["headrace table list shop"])
def list_(session: Session, scope: ScopeName) -> Outcome:
    """List the tables of a scope by name."""
    names = session.client.admin.tables.list(scope)
    document = {"tables": [{"scope": scope, "table": name} for name in names]}
    return Outcome(document, ("TABLE",), [(f"{scope}/{name}",) for name in names])


@action(app, "get", examples=["headrace table get shop/prices"])
def get(session: Session, table: TableName) -> Outcome:
    """Show a table: state and configuration."""
    return _shown(session.client.admin.tables.get(*table))


@action(app, "segments", examples=["headrace table segments shop/prices"])
def segments(session: Session, table: TableName) -> Outcome:
    """List the segments of a table and their key ranges."""
    table_segments = session.client.admin.tables.segments(*table)
    document = {
        "primaryKeyLength": table_segments.primary_key_length,
        "secondaryKeyLength": table_segments.secondary_key_length,
        "segments": [segment_document(segment) for segment in table_segments.segments],
    }
    return Outcome(document, SEGMENT_COLUMNS, segment_rows(table_segments.segments))


@action(app, "endpoint", examples=["headrace table endpoint shop/prices 0@0"])
def endpoint(session: Session, table: TableName, segment: SegmentId) -> Outcome:
    """Show which segment store serves a segment of a table."""
    address = session.client.admin.tables.endpoint(*table, segment)
    return Outcome(endpoint_document(address), details=endpoint_details(address))


@action(app, "delete", examples=["headrace table delete shop/prices"])
def delete(session: Session, table: TableName, no_wait: NoWait = False) -> Outcome:
    """Delete a table with all its entries."""
    session.client.admin.tables.delete(*table, wait=not no_wait)
    document = {"scope": table.scope, "table": table.name, "deleted": not no_wait}
    return Outcome(document, text=f"table {table} is {'being ' if no_wait else ''}deleted")


def _shown(view: TableView) -> Outcome:
    configuration = view.configuration
    document: dict[str, Any] = {
        "scope": view.scope,
        "table": view.table,
        "state": view.state,
        "partitions": configuration.partition_count,
        "primaryKeyLength": configuration.primary_key_length,
        "secondaryKeyLength": configuration.secondary_key_length,
        "rolloverSizeBytes": configuration.rollover_size_bytes,
        "creationTimeMs": view.creation_time_ms,
    }
    details = [
        ("table", f"{view.scope}/{view.table}"),
        ("state", state_text(view.state)),
        ("partitions", configuration.partition_count),
        ("primary keys", f"{configuration.primary_key_length} bytes"),
        ("secondary keys", f"{configuration.secondary_key_length} bytes"),
        ("created", time_text(view.creation_time_ms)),
    ]
    return Outcome(document, details=details)
