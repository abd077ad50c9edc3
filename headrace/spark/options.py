"""The options of `format("headrace")`: names, defaults, checks; named as in Pravega's connector where it has them.

Everything is checked when a DataFrame is loaded. Spark hands option names over in lower case; all ours are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from headrace.adapters.system_clock import local_now
from headrace.api.plans import OnTruncation
from headrace.client.ranges.range_bytes import HistorySource
from headrace.codec.places import is_time_without_date, parse_time
from headrace.codec.stream_cut_text import parse_stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import NetworkName
from headrace.model.limits import EVENT_TIME_MS_MIN
from headrace.model.names import check_scope_name, check_stream_name
from headrace.spark.event_schemas import EventType, Field, ScalarType, StructType, parse_event_schema, quoted_name
from headrace.spark.option_values import (
    check_known,
    controller_url,
    invalid_option,
    network_name,
    one_of,
    required,
    whole_number,
    yes_or_no,
)
from headrace.spark.partitions import PARTITION_BYTES_MAX_DEFAULT

EventFormat = Literal["binary", "text", "json"]
OnBadRecord = Literal["fail", "column", "skip"]

CORRUPT_COLUMN_DEFAULT = "_corrupt"
REASON_SUFFIX = "_reason"
"""After the name of the column with a bad record: the name of the one with the reason."""

COLUMN_TYPES = {
    "event": "binary",
    "scope": "string",
    "stream": "string",
    "segment_id": "bigint",
    "offset": "bigint",
    "key_range_low": "double",
    "key_range_high": "double",
}
TIME_PREFIX = "time:"
"""Of a checked start or end that is a time, in milliseconds since the Unix epoch."""
TIME_DIGITS_MAX = 14
"""Times up to the year 5138. Those in micro- or nanoseconds have more digits."""
TIME_MS_MIN = EVENT_TIME_MS_MIN

_TEXT_SCHEMA = StructType((Field("event", ScalarType("string")),))
_START_WORDS = ("earliest", "latest", "unbounded")
_END_WORDS = ("latest", "unbounded")
COLUMNS_DEFAULT = ("event", "scope", "stream", "segment_id", "offset")
PATIENCE_S_DEFAULT = 120
IDLE_POLL_MS_DEFAULT = 500

_OWN = frozenset(
    {
        "controller",
        "scope",
        "stream",
        "stream_pattern",
        "start_stream_cut",
        "end_stream_cut",
        "approx_bytes_per_trigger",
        "auth",
        "columns",
        "corrupt_column",
        "event_format",
        "event_schema",
        "filter_pushdown",
        "idle_poll_ms",
        "max_partition_bytes",
        "network",
        "on_bad_record",
        "on_truncation",
        "parallelism",
        "patience_s",
        "read_history_from",
        "strict_key_order",
    }
)
OF_PRAVEGA_FOR_WRITING = frozenset(
    {
        "allow_create_scope",
        "allow_create_stream",
        "default_num_segments",
        "default_retention_duration_milliseconds",
        "default_retention_size_bytes",
        "default_scale_factor",
        "default_segment_target_rate_bytes_per_sec",
        "default_segment_target_rate_events_per_sec",
        "exactly_once",
        "read_after_write_consistency",
        "transaction_status_poll_interval_ms",
        "transaction_timeout_ms",
    }
)
"""Accepted so that programs can move over; a reader creates and writes nothing, so they mean nothing to it."""


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The columns that are read from events, and what happens to events that do not fit.

    `is_text`: the one field of the schema is the event itself; else events are JSON objects with the fields.
    """

    schema: StructType
    on_bad_record: OnBadRecord
    corrupt_column: str
    is_text: bool = False

    def column_types(self) -> list[tuple[str, EventType]]:
        """Name and type of each column that is in the place of `event`."""
        columns = [(field.name, field.type) for field in self.schema.fields]
        if self.on_bad_record == "column":
            columns.append((self.corrupt_column, ScalarType("binary")))
            columns.append((self.corrupt_column + REASON_SUFFIX, ScalarType("string")))
        return columns


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options.

    `records` is given with the event format json, and with text if events that are not text do not fail the read.

    A stream cut is a word in lower case, a time with TIME_PREFIX, the text of a cut of this stream, or None: not given.
    """

    controller: str
    scope: str
    streams: tuple[str, ...]
    stream_pattern: str | None
    start_stream_cut: str | None
    end_stream_cut: str | None
    approx_bytes_per_trigger: int | None
    auth: Literal["aws-iam"] | None
    columns: tuple[str, ...]
    event_format: EventFormat
    filter_pushdown: bool | None
    records: RecordFormat | None
    idle_poll_ms: int
    max_partition_bytes: int
    network: NetworkName | None
    on_truncation: OnTruncation
    parallelism: int | None
    patience_s: int
    read_history_from: HistorySource
    strict_key_order: bool

    def named(self) -> str:
        """The streams as a person calls them."""
        return f"{self.scope}/{','.join(self.streams) or self.stream_pattern}"

    def reads(self, scope: str, stream: str) -> bool:
        """Whether the stream is one of those that the options name."""
        if self.stream_pattern is not None:
            return scope == self.scope and re.fullmatch(self.stream_pattern, stream) is not None
        return scope == self.scope and stream in self.streams

    @property
    def skips_deleted_streams(self) -> bool:
        """A pattern means the streams that there are, so that the others need not fail without one of them."""
        return self.stream_pattern is not None and self.on_truncation == "skip"

    def own_columns(self) -> frozenset[str]:
        """The columns of the rows except for those of records, which may be null or have other names of ours."""
        return frozenset(self.columns) - ({"event"} if self.records is not None else frozenset())

    def column_types(self) -> list[tuple[str, str]]:
        """Name and Spark type of each column of the rows."""
        return [(name, str(kind)) for name, kind in self._columns()]

    def ddl(self) -> str:
        """The schema of the rows as Spark's DDL."""
        return ", ".join(f"{quoted_name(name)} {kind.ddl()}" for name, kind in self._columns())

    def _columns(self) -> Iterator[tuple[str, EventType]]:
        for name in self.columns:
            if name == "event" and self.records is not None:
                yield from self.records.column_types()
            else:
                is_text = name == "event" and self.event_format == "text"
                yield name, ScalarType("string" if is_text else COLUMN_TYPES[name])


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The checked options.

    Raises:
        InvalidRequestError: an option is unknown, missing, or has a value that means nothing; the message says which
            and what is allowed.
    """
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options)
    scope = check_scope_name(required(options, "scope"))
    streams = _streams(options)
    columns = _columns(options.get("columns"))
    event_format: EventFormat = one_of(options, "event_format", get_args(EventFormat), "binary")
    return ReadOptions(
        controller=controller_url(options),
        scope=scope,
        streams=streams,
        stream_pattern=options.get("stream_pattern"),
        start_stream_cut=_stream_cut(options, "start_stream_cut", _START_WORDS, scope, streams),
        end_stream_cut=_stream_cut(options, "end_stream_cut", _END_WORDS, scope, streams),
        approx_bytes_per_trigger=whole_number(options, "approx_bytes_per_trigger"),
        auth=one_of(options, "auth", ("aws-iam",), None),
        columns=columns,
        event_format=event_format,
        records=_record_format(options, event_format, columns),
        filter_pushdown=yes_or_no(options, "filter_pushdown", False) if "filter_pushdown" in options else None,
        idle_poll_ms=whole_number(options, "idle_poll_ms") or IDLE_POLL_MS_DEFAULT,
        max_partition_bytes=whole_number(options, "max_partition_bytes") or PARTITION_BYTES_MAX_DEFAULT,
        network=network_name(options),
        on_truncation=one_of(options, "on_truncation", get_args(OnTruncation), "fail"),
        parallelism=whole_number(options, "parallelism"),
        patience_s=whole_number(options, "patience_s") or PATIENCE_S_DEFAULT,
        read_history_from=one_of(options, "read_history_from", get_args(HistorySource), "s3"),
        strict_key_order=yes_or_no(options, "strict_key_order", False),
    )


def check_cut_text(text: str, scope: str, stream: str) -> dict[int, int]:
    """The positions of the cut.

    Raises:
        InvalidRequestError: the text is not a stream cut, or it is a cut of another stream.
    """
    cut = parse_stream_cut_text(text)
    if (cut.scope, cut.stream) != (scope, stream):
        raise InvalidRequestError(
            f"the stream cut is one of {cut.scope}/{cut.stream}, not of {scope}/{stream}", code="invalid_stream_cut"
        )
    return cut.offsets


def _check_names(options: Mapping[str, str]) -> None:
    if "metadata" in options:
        raise invalid_option("metadata", "a metadata table can only be read as a batch, with spark.read or read_batch")
    check_known(options, _OWN | OF_PRAVEGA_FOR_WRITING, _OWN)


def _streams(options: Mapping[str, str]) -> tuple[str, ...]:
    """The names in the option stream; none with a pattern."""
    pattern = options.get("stream_pattern")
    if pattern is None:
        names = tuple(check_stream_name(name.strip()) for name in required(options, "stream").split(","))
        if len(set(names)) != len(names):
            raise invalid_option("stream", f"{options['stream']!r} names a stream twice")
        return names
    if "stream" in options:
        raise invalid_option("stream_pattern", "give either stream or stream_pattern")
    if not pattern.strip():
        raise invalid_option("stream_pattern", "it matches the names of streams, and cannot be empty")
    try:
        re.compile(pattern)
    except re.error as error:
        raise invalid_option("stream_pattern", f"{pattern!r} is not a regular expression: {error}") from error
    return ()


def _stream_cut(
    options: Mapping[str, str], name: str, words: tuple[str, ...], scope: str, streams: tuple[str, ...]
) -> str | None:
    """A word in lower case, a time, the text of a cut of the one stream, or the texts of the cuts of several."""
    value = options.get(name, "").strip()
    if not value:
        return None
    if value.lower() in words:
        return value.lower()
    time_ms = _time_ms(name, value)
    if time_ms is not None:
        return f"{TIME_PREFIX}{time_ms}"
    try:
        for stream, text in _cut_texts(value, streams).items():
            check_cut_text(text, scope, stream)
    except InvalidRequestError as error:
        raise invalid_option(
            name, f"{error.message}. Give one of {', '.join(words)}, a time, or the text of a cut"
        ) from error
    return value


def _cut_texts(value: str, streams: tuple[str, ...]) -> dict[str, str]:
    """By stream."""
    if not value.startswith("{"):
        if len(streams) != 1:
            raise InvalidRequestError('for several streams, cuts are given as {"stream": "text of its cut", ...}')
        return {streams[0]: value}
    try:
        texts = {str(stream): str(text) for stream, text in json.loads(value).items()}
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{value!r} is not JSON: {error}") from error
    unread = [stream for stream in texts if streams and stream not in streams]
    if unread:
        raise InvalidRequestError(f"there is a cut for {unread[0]!r}, which the option stream does not name")
    return texts


def _time_ms(name: str, value: str) -> int | None:
    """The time of a text; None if it is not a time.

    It is milliseconds since the Unix epoch, a date and time of ISO 8601 with its time zone, a time before now (`-5m`),
    or a time of day (`10:05`) by the clock of the driver.
    """
    if value.isascii() and value.isdecimal():
        if len(value) > TIME_DIGITS_MAX:
            raise invalid_option(name, f"a time is in milliseconds, so it has not {len(value)} digits")
        return _recent(name, value, int(value))
    if is_time_without_date(value):
        try:
            return int(parse_time(value, local_now()).timestamp() * 1000)
        except InvalidRequestError as error:
            raise invalid_option(name, error.message) from error
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    if time.tzinfo is None:
        raise invalid_option(name, f"{value!r} has no time zone: write for example {value}Z")
    try:
        time_ms = int(time.astimezone(UTC).timestamp() * 1000)
    except OverflowError as error:
        raise invalid_option(name, f"in UTC {value!r} is not a time of the years 1 to 9999") from error
    return _recent(name, value, time_ms)


def _recent(name: str, value: str, time_ms: int) -> int:
    """Refuses a time at which no stream existed, which would be the head of the stream without a word."""
    if time_ms >= TIME_MS_MIN:
        return time_ms
    problem = f"{value!r} is a time before 2001"
    if value.isdecimal():
        in_ms = f": {value}000" if TIME_MS_MIN <= time_ms * 1000 < 10**TIME_DIGITS_MAX else ""
        problem += f", since times are in milliseconds. If it is in seconds, append three zeros{in_ms}"
    raise invalid_option(name, f"{problem}. To read from the first event on, write earliest")


def _record_format(
    options: Mapping[str, str], event_format: EventFormat, columns: tuple[str, ...]
) -> RecordFormat | None:
    if event_format != "json" and "event_schema" in options:
        raise invalid_option("event_schema", "it needs event_format=json")
    if event_format == "binary":
        for name in ("on_bad_record", "corrupt_column"):
            if name in options:
                raise invalid_option(name, "it needs event_format=json or text")
        return None
    is_text = event_format == "text"
    schema = _TEXT_SCHEMA if is_text else _event_schema(options)
    on_bad_record: OnBadRecord = one_of(options, "on_bad_record", get_args(OnBadRecord), "fail")
    if "corrupt_column" in options and on_bad_record != "column":
        raise invalid_option("corrupt_column", "it needs on_bad_record=column")
    if is_text and on_bad_record == "fail":
        return None
    records = RecordFormat(schema, on_bad_record, options.get("corrupt_column", CORRUPT_COLUMN_DEFAULT), is_text)
    _check_collisions(records, columns)
    return records


def _event_schema(options: Mapping[str, str]) -> StructType:
    try:
        return parse_event_schema(required(options, "event_schema"))
    except InvalidRequestError as error:
        if error.specific_code == "invalid_option":
            raise
        raise invalid_option("event_schema", error.message) from error


def _check_collisions(records: RecordFormat, columns: tuple[str, ...]) -> None:
    """Spark ignores the case of names, so columns whose names differ only in case are one."""
    if not records.corrupt_column.strip():
        raise invalid_option("corrupt_column", "it is the name of a column, and cannot be empty")
    metadata = {name for name in columns if name != "event"}
    taken: set[str] = set()
    for name, _ in records.column_types():
        if name.lower() in metadata:
            raise invalid_option(
                "corrupt_column" if records.is_text else "event_schema",
                f"{name!r} is a column of the connector, too: leave it out of the option 'columns'",
            )
        if name.lower() in taken:
            owner = "the column of the text" if records.is_text else "a field of event_schema"
            raise invalid_option("corrupt_column", f"{name!r} is {owner}: choose another name")
        taken.add(name.lower())


def _columns(value: str | None) -> tuple[str, ...]:
    if value is None:
        return COLUMNS_DEFAULT
    columns = tuple(name.strip().lower() for name in value.split(","))
    for name in columns:
        if name not in COLUMN_TYPES:
            raise invalid_option("columns", f"there is no column {name!r}; there are {', '.join(COLUMN_TYPES)}")
    if len(set(columns)) != len(columns):
        raise invalid_option("columns", f"{value!r} names a column twice")
    return columns
