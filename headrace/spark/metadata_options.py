"""The options of metadata tables: `format("headrace")` and `read_batch` with the option `metadata`.

Tables and columns that Pravega's connector has are named as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_reader_group_name
from headrace.spark.option_values import check_known, invalid_option, one_of
from headrace.spark.options import OF_PRAVEGA_FOR_WRITING, ReadOptions, read_options

TableName = Literal["streams", "streaminfo", "segments", "lag"]

_STREAM: Final = {"scope_name": "string", "stream_name": "string"}
_SEGMENT: Final = _STREAM | {"segment_id": "bigint", "key_range_low": "double", "key_range_high": "double"}

TABLE_COLUMNS: Final[Mapping[TableName, Mapping[str, str]]] = {
    "streams": _STREAM | {"tags": "array<string>"},
    "streaminfo": {
        "head_stream_cut": "string",
        "tail_stream_cut": "string",
        **_STREAM,
        "state": "string",
        "epoch": "bigint",
        "segments": "bigint",
        "tags": "array<string>",
        "scaling_policy": "string",
        "retention_policy": "string",
        "creation_time_ms": "bigint",
    },
    "segments": _SEGMENT
    | {"head_offset": "bigint", "tail_offset": "bigint", "bytes": "bigint", "is_sealed": "boolean"},
    "lag": _SEGMENT | {"offset": "bigint", "tail_offset": "bigint", "bytes_behind": "bigint", "bytes_lost": "bigint"},
}
"""Name and Spark type of the columns of each table."""

SHOWN_NAMES: Final = "Streams, StreamInfo, Segments, Lag"

_OWN: Final = frozenset({"metadata", "checkpoint_location", "plans", "reader_group"})
"""Options that reads of events do not have."""

_POSITIONS: Final = ("start_stream_cut", "checkpoint_location", "reader_group")
_FOR_LAG: Final = frozenset({*_POSITIONS, "plans"})
_FOR_ALL: Final = frozenset(
    {"metadata", "controller", "scope", "stream", "stream_pattern", "auth", "network", "patience_s"}
)
ANY_STREAM: Final = ".*"
"""The pattern if the options name no streams."""


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Checked options.

    `read` has the streams that the table is about, and for a lag behind a cut the cut. The other fields say where else
    the position is that a lag counts from; `plans` is the directory of plans of a query of `read_stream`.
    """

    table: TableName
    read: ReadOptions
    checkpoint_location: str | None = None
    plans: str | None = None
    reader_group: str | None = None

    def column_types(self) -> list[tuple[str, str]]:
        """Name and Spark type of each column."""
        return list(TABLE_COLUMNS[self.table].items())

    def ddl(self) -> str:
        """The schema of the table as Spark's DDL."""
        return ", ".join(f"`{column}` {kind}" for column, kind in self.column_types())


def asks_for_metadata(given: Mapping[str, str]) -> bool:
    """Whether the options are those of a metadata table, and not of events."""
    return any(name.lower() == "metadata" for name in given)


def metadata_options(given: Mapping[str, str]) -> MetadataOptions:
    """The checked options.

    Raises:
        InvalidRequestError: the table or an option is unknown, or an option is missing or has a value that means
            nothing; the message says which and what is allowed.
    """
    options = {name.lower(): value for name, value in given.items()}
    table = _table(options)
    known = _FOR_ALL | (_FOR_LAG if table == "lag" else frozenset())
    check_known(options, known | OF_PRAVEGA_FOR_WRITING, known)
    own = {name: options.pop(name) for name in _OWN if name in options}
    if table == "lag":
        _check_position(options, own)
    names_streams = "stream" in options or "stream_pattern" in options
    if not names_streams and (table == "streams" or own.keys() & {"checkpoint_location", "reader_group"}):
        options["stream_pattern"] = ANY_STREAM
    group = own.get("reader_group")
    return MetadataOptions(
        table,
        replace(read_options(options), on_truncation="skip"),
        own.get("checkpoint_location"),
        own.get("plans"),
        None if group is None else check_reader_group_name(group),
    )


def _table(options: Mapping[str, str]) -> TableName:
    try:
        table: TableName = one_of(options, "metadata", get_args(TableName), None)
    except InvalidRequestError as error:
        raise invalid_option(
            "metadata", f"there is no table {options['metadata']!r}; there are {SHOWN_NAMES}"
        ) from error
    return table


def _check_position(options: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Refuses a lag that counts from no position, or from several."""
    found = [name for name in _POSITIONS if name in options or name in own]
    if len(found) != 1:
        raise invalid_option(
            "metadata", f"a lag counts from one position: give one of {', '.join(_POSITIONS)}, not {len(found)}"
        )
    if "plans" in own and "checkpoint_location" not in own:
        raise invalid_option("plans", "it needs checkpoint_location, the checkpoint that the plans belong to")
