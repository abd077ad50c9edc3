"""The configuration of a stream as part of a body: in the current record, in its update and in dead letters."""

from __future__ import annotations

from typing import Any

from headrace.model.log_classes import LogClass
from headrace.model.stream_configuration import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
)
from headrace.ports.metadata_store import Body


def configuration_fields(configuration: StreamConfiguration) -> dict[str, Any]:
    """A configuration as part of a body. The default class is left out."""
    scaling, retention = configuration.scaling, configuration.retention
    log_class = {} if configuration.log_class is LogClass.STORES else {"log_class": str(configuration.log_class)}
    return log_class | {
        "scaling": [str(scaling.type), scaling.min_segments, scaling.target_rate, scaling.scale_factor],
        "retention": [str(retention.type), retention.value, retention.max_value] if retention else None,
        "tags": list(configuration.tags),
        "timestamp_aggregation_timeout_ms": configuration.timestamp_aggregation_timeout_ms,
        "rollover_size_bytes": configuration.rollover_size_bytes,
    }


def decode_configuration(fields: Body) -> StreamConfiguration:
    scaling_type, min_segments, target_rate, scale_factor = fields["scaling"]
    return StreamConfiguration(
        scaling=ScalingPolicy(ScalingType(scaling_type), int(min_segments), int(target_rate), int(scale_factor)),
        retention=_retention(fields["retention"]),
        tags=tuple(fields["tags"]),
        timestamp_aggregation_timeout_ms=int(fields["timestamp_aggregation_timeout_ms"]),
        rollover_size_bytes=int(fields["rollover_size_bytes"]),
        log_class=LogClass(fields.get("log_class", LogClass.STORES)),
    )


def _retention(fields: Any) -> RetentionPolicy | None:
    if fields is None:
        return None
    retention_type, value, max_value = fields
    return RetentionPolicy(RetentionType(retention_type), int(value), None if max_value is None else int(max_value))
