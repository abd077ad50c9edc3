"""`headrace table`: create, list, get, segments, endpoint, delete."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.api.key_value_tables import TableView
from headrace.cli.arguments import ScopedName, add_no_wait, add_scope, number, positive, scoped_name
from headrace.cli.outcome import Outcome
from headrace.cli.resource_command import ResourceCommand
from headrace.cli.segment import SEGMENT_COLUMNS, endpoint_document, segment_document, segment_rows
from headrace.client import Headrace
from headrace.model.key_value_tables import TableConfiguration


def _document(view: TableView) -> dict[str, Any]:
    return {
        "scope": view.scope,
        "table": view.table,
        "state": view.state,
        "partitions": view.configuration.partition_count,
        "primaryKeyLength": view.configuration.primary_key_length,
        "secondaryKeyLength": view.configuration.secondary_key_length,
        "rolloverSizeBytes": view.configuration.rollover_size_bytes,
        "creationTimeMs": view.creation_time_ms,
    }


def _create(client: Headrace, options: argparse.Namespace) -> Outcome:
    configuration = TableConfiguration(
        options.partitions, options.primary_key_length, options.secondary_key_length, options.rollover_size_bytes
    )
    view = client.admin.tables.create(
        *_table_of(options), configuration, exist_ok=options.exist_ok, wait=not options.no_wait
    )
    return Outcome(_document(view))


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    names = client.admin.tables.list(options.scope)
    document = {"tables": [{"scope": options.scope, "table": name} for name in names]}
    return Outcome(document, ("TABLE",), [(f"{options.scope}/{name}",) for name in names])


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    return Outcome(_document(client.admin.tables.get(*_table_of(options))))


def _segments(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.tables.segments(*_table_of(options))
    document = {
        "primaryKeyLength": found.primary_key_length,
        "secondaryKeyLength": found.secondary_key_length,
        "segments": [segment_document(one) for one in found.segments],
    }
    return Outcome(document, SEGMENT_COLUMNS, segment_rows(found.segments))


def _endpoint(client: Headrace, options: argparse.Namespace) -> Outcome:
    return Outcome(endpoint_document(client.admin.tables.endpoint(*_table_of(options), options.segment)))


def _delete(client: Headrace, options: argparse.Namespace) -> Outcome:
    scope, table = _table_of(options)
    client.admin.tables.delete(scope, table, wait=not options.no_wait)
    document = {"scope": scope, "table": table, "deleted": not options.no_wait}
    return Outcome(document, text=f"table {scope}/{table} is {'being ' if options.no_wait else ''}deleted")


def _table_of(options: argparse.Namespace) -> ScopedName:
    found: ScopedName = options.table
    return found


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", type=scoped_name, metavar="SCOPE/TABLE")


def _command() -> ResourceCommand:
    command = ResourceCommand("table", "Key-value tables.")

    parser = command.action("create", _create, "Create a table. Its configuration cannot be changed later.")
    _add_table(parser)
    parser.add_argument("--partitions", type=positive, default=1, metavar="N", help="number of segments (default 1)")
    parser.add_argument(
        "--primary-key-length", type=positive, required=True, metavar="BYTES", help="length of all primary keys"
    )
    parser.add_argument(
        "--secondary-key-length",
        type=number,
        default=0,
        metavar="BYTES",
        help="length of all secondary keys (default 0)",
    )
    parser.add_argument("--rollover-size-bytes", type=number, default=0, metavar="BYTES")
    parser.add_argument("--exist-ok", action="store_true", help="accept an existing table without changing it")
    add_no_wait(parser)

    add_scope(command.action("list", _list, "List the tables of a scope by name."))
    _add_table(command.action("get", _get, "Show a table: state and configuration."))
    _add_table(command.action("segments", _segments, "List the segments of a table and their key ranges."))

    parser = command.action("endpoint", _endpoint, "Show which segment store serves a segment of a table.")
    _add_table(parser)
    parser.add_argument("segment", type=number, metavar="SEGMENT", help="id of the segment")

    parser = command.action("delete", _delete, "Delete a table with all its entries.")
    _add_table(parser)
    add_no_wait(parser)
    return command


main = _command()
