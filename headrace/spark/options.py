"""The options of `format("headrace")`: names, defaults, checks; named as in Pravega's connector where it has them.

Everything is checked when a DataFrame is loaded. Spark hands option names over in lower case; all ours are.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from headrace.client.range_bytes import HistorySource
from headrace.codec.stream_cut_text import parse_stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_scope_name, check_stream_name
from headrace.spark.partitions import PARTITION_BYTES_MAX_DEFAULT

EventFormat = Literal["binary", "text"]

COLUMN_TYPES = {
    "event": "binary",
    "scope": "string",
    "stream": "string",
    "segment_id": "bigint",
    "offset": "bigint",
    "key_range_low": "double",
    "key_range_high": "double",
}
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
        "start_stream_cut",
        "end_stream_cut",
        "approx_bytes_per_trigger",
        "auth",
        "columns",
        "event_format",
        "idle_poll_ms",
        "max_partition_bytes",
        "patience_s",
        "read_history_from",
        "strict_key_order",
    }
)
_OF_PRAVEGA_FOR_WRITING = frozenset(
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
class ReadOptions:
    """Checked options. A stream cut is a word in lower case, the text of a cut of this stream, or None: not given."""

    controller: str
    scope: str
    stream: str
    start_stream_cut: str | None
    end_stream_cut: str | None
    approx_bytes_per_trigger: int | None
    auth: Literal["aws-iam"] | None
    columns: tuple[str, ...]
    event_format: EventFormat
    idle_poll_ms: int
    max_partition_bytes: int
    patience_s: int
    read_history_from: HistorySource
    strict_key_order: bool

    def column_types(self) -> list[tuple[str, str]]:
        """Name and Spark type of each column of the rows."""
        types = COLUMN_TYPES | ({"event": "string"} if self.event_format == "text" else {})
        return [(column, types[column]) for column in self.columns]

    def ddl(self) -> str:
        """The schema of the rows as Spark's DDL."""
        return ", ".join(f"`{column}` {kind}" for column, kind in self.column_types())


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The checked options.

    Raises:
        InvalidRequestError: an option is unknown, missing, or has a value that means nothing; the message says which
            and what is allowed.
    """
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options)
    scope = check_scope_name(_required(options, "scope"))
    stream = check_stream_name(_required(options, "stream"))
    return ReadOptions(
        controller=_controller(_required(options, "controller")),
        scope=scope,
        stream=stream,
        start_stream_cut=_stream_cut(options, "start_stream_cut", _START_WORDS, scope, stream),
        end_stream_cut=_stream_cut(options, "end_stream_cut", _END_WORDS, scope, stream),
        approx_bytes_per_trigger=_positive(options, "approx_bytes_per_trigger"),
        auth=_one_of(options, "auth", ("aws-iam",), None),
        columns=_columns(options.get("columns")),
        event_format=_one_of(options, "event_format", get_args(EventFormat), "binary"),
        idle_poll_ms=_positive(options, "idle_poll_ms") or IDLE_POLL_MS_DEFAULT,
        max_partition_bytes=_positive(options, "max_partition_bytes") or PARTITION_BYTES_MAX_DEFAULT,
        patience_s=_positive(options, "patience_s") or PATIENCE_S_DEFAULT,
        read_history_from=_one_of(options, "read_history_from", get_args(HistorySource), "s3"),
        strict_key_order=_one_of(options, "strict_key_order", ("true", "false"), "false") == "true",
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
    known = sorted(_OWN | _OF_PRAVEGA_FOR_WRITING)
    for name in options:
        if name == "metadata":
            raise _invalid(name, "metadata tables are not offered; leave it out to read events")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(_OWN))}"
            raise _invalid(name, f"there is no such option; {hint}")


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise _invalid(name, "it is required")
    return value


def _controller(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise _invalid("controller", f"{url!r} is not the URL of a controller, like http://127.0.0.1:10080")
    return url.rstrip("/")


def _stream_cut(options: Mapping[str, str], name: str, words: tuple[str, ...], scope: str, stream: str) -> str | None:
    """A word in lower case, or the text of a cut of this stream."""
    value = options.get(name, "").strip()
    if not value:
        return None
    if value.lower() in words:
        return value.lower()
    try:
        check_cut_text(value, scope, stream)
    except InvalidRequestError as error:
        raise _invalid(name, f"{error.message}. Give one of {', '.join(words)}, or the text of a cut") from error
    return value


def _positive(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise _invalid(name, f"{value!r} is not a whole number of at least 1")
    return int(value)


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...], default: Any) -> Any:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in allowed:
        raise _invalid(name, f"{value!r} is none of {', '.join(allowed)}")
    return value.lower()


def _columns(value: str | None) -> tuple[str, ...]:
    if value is None:
        return COLUMNS_DEFAULT
    columns = tuple(name.strip().lower() for name in value.split(","))
    for name in columns:
        if name not in COLUMN_TYPES:
            raise _invalid("columns", f"there is no column {name!r}; there are {', '.join(COLUMN_TYPES)}")
    if len(set(columns)) != len(columns):
        raise _invalid("columns", f"{value!r} names a column twice")
    return columns


def _invalid(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"option {name!r}: {problem}", details={"option": name}, code="invalid_option")
