"""The options for writing with `format("headrace")`, `write_batch` and `write_events`: names, defaults, checks.

Names and meanings are those of Pravega's connector where it has the option. Two differ: the lease is long, because only
the lease is left to end the transactions of a driver that died; and a batch of a query is committed at most once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.model.commit_sets import EPOCH_MAX, SET_STREAMS_MAX
from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import NetworkName
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy
from headrace.model.transactions import LEASE_MS_MAX, LEASE_MS_MIN
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

PATIENCE_S_DEFAULT: Final = 120
TRANSACTION_TIMEOUT_MS_DEFAULT: Final = 12 * 3600 * 1000
STATUS_POLL_MS_DEFAULT: Final = 50
SEGMENTS_DEFAULT: Final = 1
SCALE_FACTOR_DEFAULT: Final = 2
BYTES_PER_S_MIN: Final = 1024
_WRITER_ID = re.compile(r"[A-Za-z0-9._:\-]{1,120}")

_MARK_DIGITS: Final = 16
_FOR_BATCHES: Final = frozenset({"epoch"})
_OWN: Final = frozenset(
    {
        "allow_create_scope",
        "allow_create_stream",
        "auth",
        "controller",
        "default_num_segments",
        "default_retention_duration_milliseconds",
        "default_retention_size_bytes",
        "default_scale_factor",
        "default_segment_target_rate_bytes_per_sec",
        "default_segment_target_rate_events_per_sec",
        "exactly_once",
        "network",
        "patience_s",
        "read_after_write_consistency",
        "scope",
        "stream",
        "streams",
        "transaction_status_poll_interval_ms",
        "transaction_timeout_ms",
        "writer_id",
    }
)
_OF_SPARK: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Spark hands these of its own over with those of the sink."""


@dataclass(frozen=True, slots=True)
class NewStreams:
    """What to do about a stream that does not exist: the policies that it is created with, if it may be created."""

    allow_scope: bool
    allow_stream: bool
    scaling: ScalingPolicy
    retention: RetentionPolicy | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options.

    `stream` gets the rows that name no stream, and its partition keeps the epochs of the writer. `streams` are the
    other streams that rows may name. `epoch` is given for batches only. `checkpoint_mark` is a hash of the
    location of a query's checkpoint.
    """

    controller: str
    scope: str
    stream: str
    streams: tuple[str, ...]
    auth: Literal["aws-iam"] | None
    network: NetworkName | None
    patience_s: int
    exactly_once: bool
    read_after_write: bool
    transaction_timeout_ms: int
    status_poll_ms: int
    writer_id: str | None
    epoch: int | None
    checkpoint_mark: str | None
    new_streams: NewStreams

    @property
    def targets(self) -> tuple[str, ...]:
        """All streams that rows may go to."""
        return (self.stream, *self.streams)


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The checked options.

    Raises:
        InvalidRequestError: an option is unknown, missing, or has a value that means nothing; the message says which
            and what is allowed.
    """
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options, streaming)
    stream = check_stream_name(required(options, "stream"))
    return WriteOptions(
        controller=controller_url(options),
        scope=check_scope_name(required(options, "scope")),
        stream=stream,
        streams=_streams(options.get("streams"), stream),
        auth=one_of(options, "auth", ("aws-iam",), None),
        network=network_name(options),
        patience_s=whole_number(options, "patience_s") or PATIENCE_S_DEFAULT,
        exactly_once=yes_or_no(options, "exactly_once", True),
        read_after_write=yes_or_no(options, "read_after_write_consistency", True),
        transaction_timeout_ms=_lease_ms(options),
        status_poll_ms=whole_number(options, "transaction_status_poll_interval_ms") or STATUS_POLL_MS_DEFAULT,
        writer_id=_writer_id(options.get("writer_id")),
        epoch=whole_number(options, "epoch", least=0, most=EPOCH_MAX),
        checkpoint_mark=_mark(options.get("checkpointlocation")),
        new_streams=_new_streams(options),
    )


def _check_names(options: Mapping[str, str], streaming: bool) -> None:
    if streaming and "epoch" in options:
        raise invalid_option("epoch", "the epoch of a streaming query is the number of its batch; leave it out")
    check_known(options, _OWN | _FOR_BATCHES | _OF_SPARK, _OWN if streaming else _OWN | _FOR_BATCHES)
    if ("epoch" in options) and "writer_id" not in options:
        raise invalid_option("epoch", "an epoch counts the writes of one writer: give a writer_id, too")
    if not streaming and "writer_id" in options and "epoch" not in options:
        raise invalid_option("writer_id", "a batch write of a named writer needs an epoch: a larger one for each write")
    if options.get("exactly_once", "").lower() == "false":
        for name in ("writer_id", "epoch"):
            if name in options:
                raise invalid_option(name, "it has no meaning with exactly_once=false")


def _streams(value: str | None, home: str) -> tuple[str, ...]:
    if value is None:
        return ()
    names = [check_stream_name(name.strip()) for name in value.split(",")]
    others = tuple(sorted(set(names) - {home}))
    if len(others) >= SET_STREAMS_MAX:
        raise invalid_option(
            "streams", f"{len(others) + 1} streams are too many: at most {SET_STREAMS_MAX} with 'stream'"
        )
    return others


def _lease_ms(options: Mapping[str, str]) -> int:
    lease_ms = whole_number(options, "transaction_timeout_ms", least=LEASE_MS_MIN, most=LEASE_MS_MAX)
    return lease_ms or TRANSACTION_TIMEOUT_MS_DEFAULT


def _mark(checkpoint: str | None) -> str | None:
    return None if checkpoint is None else hashlib.sha256(checkpoint.encode()).hexdigest()[:_MARK_DIGITS]


def _writer_id(value: str | None) -> str | None:
    if value is not None and not _WRITER_ID.fullmatch(value):
        raise invalid_option("writer_id", f"{value!r} is not 1 to 120 characters out of letters, digits and . _ : -")
    return value


def _new_streams(options: Mapping[str, str]) -> NewStreams:
    try:
        return NewStreams(
            allow_scope=yes_or_no(options, "allow_create_scope", True),
            allow_stream=yes_or_no(options, "allow_create_stream", True),
            scaling=_scaling(options),
            retention=_retention(options),
        )
    except InvalidRequestError as error:
        if error.specific_code == "invalid_option":
            raise
        raise invalid_option("default_*", error.message) from error


def _scaling(options: Mapping[str, str]) -> ScalingPolicy:
    segments = whole_number(options, "default_num_segments") or SEGMENTS_DEFAULT
    by_bytes, by_events = (f"default_segment_target_rate_{what}_per_sec" for what in ("bytes", "events"))
    factor = whole_number(options, "default_scale_factor", least=2)
    bytes_per_s = whole_number(options, by_bytes, least=BYTES_PER_S_MIN)
    events_per_s = whole_number(options, by_events)
    if bytes_per_s is not None and events_per_s is not None:
        raise invalid_option(by_events, f"give this or {by_bytes!r}, not both")
    if bytes_per_s is not None:
        # The policy counts in KB.
        return ScalingPolicy.by_data_rate(bytes_per_s // 1024, factor or SCALE_FACTOR_DEFAULT, segments)
    if events_per_s is not None:
        return ScalingPolicy.by_event_rate(events_per_s, factor or SCALE_FACTOR_DEFAULT, segments)
    if factor is not None:
        raise invalid_option("default_scale_factor", f"it needs {by_bytes!r} or {by_events!r}")
    return ScalingPolicy.fixed(segments)


def _retention(options: Mapping[str, str]) -> RetentionPolicy | None:
    by_time, by_size = "default_retention_duration_milliseconds", "default_retention_size_bytes"
    least_ms, least_bytes = whole_number(options, by_time), whole_number(options, by_size)
    if least_ms is not None and least_bytes is not None:
        raise invalid_option(by_size, f"give this or {by_time!r}, not both")
    if least_ms is not None:
        return RetentionPolicy.by_time(least_ms)
    return None if least_bytes is None else RetentionPolicy.by_size(least_bytes)
