"""The current record of a stream: its state, active epoch, configuration and pending request, in one read.

A deleted stream leaves a tombstone in its place: the first segment number for the next stream of that name, so that no
segment name is ever used twice, and a version that goes on growing, so that nobody who read the record in a former life
of the name can write it in the present one.
"""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.codec.records.epoch_record import epoch_fields, epoch_of_fields
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_configuration import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
)
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream

CURRENT_SORT = "current"


def stream_partition(scope: str, stream: str) -> str:
    """The partition of everything that belongs to one stream."""
    return f"stream/{scope}/{stream}"


def stream_body(stream: Stream) -> dict[str, Any]:
    pending = stream.pending
    return versioned(
        scope=stream.scope,
        name=stream.name,
        state=str(stream.state),
        configuration=configuration_fields(stream.configuration),
        configuration_version=stream.configuration_version,
        created=stream.creation_time_ms,
        first_number=stream.first_segment_number,
        epoch=epoch_fields(stream.epoch),
        recorded_epoch=stream.recorded_epoch,
        pending=[str(pending.kind), pending.request_id] if pending else None,
    )


def stream_of_body(body: Body) -> Stream | None:
    """The stream; None for a tombstone."""
    return None if "next_number" in body else decoded("stream", body, _stream)


def tombstone_body(next_segment_number: int) -> dict[str, Any]:
    return versioned(next_number=next_segment_number)


def next_number_of_tombstone(body: Body) -> int:
    return decoded("tombstone", body, lambda fields: int(fields["next_number"]))


def _stream(body: Body) -> Stream:
    return Stream(
        scope=str(body["scope"]),
        name=str(body["name"]),
        state=StreamState(body["state"]),
        configuration=configuration_of_fields(body["configuration"]),
        configuration_version=int(body.get("configuration_version", 0)),
        creation_time_ms=int(body["created"]),
        first_segment_number=int(body["first_number"]),
        epoch=epoch_of_fields(body["epoch"]),
        recorded_epoch=int(body["recorded_epoch"]),
        pending=_pending(body["pending"]),
    )


def _pending(fields: Any) -> PendingRequest | None:
    if fields is None:
        return None
    kind, request_id = fields
    return PendingRequest(RequestKind(kind), str(request_id))


def configuration_fields(configuration: StreamConfiguration) -> dict[str, Any]:
    """A configuration as part of a body."""
    scaling, retention = configuration.scaling, configuration.retention
    return {
        "scaling": [str(scaling.type), scaling.min_segments, scaling.target_rate, scaling.scale_factor],
        "retention": [str(retention.type), retention.value, retention.max_value] if retention else None,
        "tags": list(configuration.tags),
        "timestamp_aggregation_timeout_ms": configuration.timestamp_aggregation_timeout_ms,
        "rollover_size_bytes": configuration.rollover_size_bytes,
    }


def configuration_of_fields(fields: Body) -> StreamConfiguration:
    scaling_type, min_segments, target_rate, scale_factor = fields["scaling"]
    return StreamConfiguration(
        scaling=ScalingPolicy(ScalingType(scaling_type), int(min_segments), int(target_rate), int(scale_factor)),
        retention=_retention(fields["retention"]),
        tags=tuple(fields["tags"]),
        timestamp_aggregation_timeout_ms=int(fields["timestamp_aggregation_timeout_ms"]),
        rollover_size_bytes=int(fields["rollover_size_bytes"]),
    )


def _retention(fields: Any) -> RetentionPolicy | None:
    if fields is None:
        return None
    retention_type, value, max_value = fields
    return RetentionPolicy(RetentionType(retention_type), int(value), None if max_value is None else int(max_value))
