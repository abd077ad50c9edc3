"""The configuration of a stream in JSON. Fields that Pravega's REST API also has are written as it writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.model.log_classes import LogClass
from headrace.model.stream_configuration import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
)


def configuration_json(configuration: StreamConfiguration) -> dict[str, Any]:
    """The JSON of a stream's configuration."""
    return {
        "scalingPolicy": _scaling_json(configuration.scaling),
        "retentionPolicy": retention_json(configuration.retention),
        "streamTags": list(configuration.tags),
        "timestampAggregationTimeout": configuration.timestamp_aggregation_timeout_ms,
        "rolloverSizeBytes": configuration.rollover_size_bytes,
        "acknowledgedBy": configuration.log_class.value,
    }


def configuration_from_json(document: Mapping[str, Any]) -> StreamConfiguration:
    """Parses a stream's configuration. Missing fields get the default of a new stream.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    return StreamConfiguration(
        scaling=_scaling_from_json(document["scalingPolicy"]),
        retention=retention_from_json(document.get("retentionPolicy")),
        tags=tuple(document.get("streamTags") or ()),
        timestamp_aggregation_timeout_ms=int(document.get("timestampAggregationTimeout") or 0),
        rollover_size_bytes=int(document.get("rolloverSizeBytes") or 0),
        log_class=LogClass(document.get("acknowledgedBy") or LogClass.STORES),
    )


def retention_json(policy: RetentionPolicy | None) -> dict[str, Any] | None:
    """The JSON of a retention policy; None if the stream has no policy."""
    if policy is None:
        return None
    return {"type": policy.type.value, "value": policy.value, "maxValue": policy.max_value}


def retention_from_json(document: Mapping[str, Any] | None) -> RetentionPolicy | None:
    """Parses a retention policy; None if the stream has no policy."""
    if document is None:
        return None
    return RetentionPolicy(RetentionType(document["type"]), int(document["value"]), document.get("maxValue"))


def _scaling_json(policy: ScalingPolicy) -> dict[str, Any]:
    return {
        "type": policy.type.value,
        "minSegments": policy.min_segments,
        "targetRate": policy.target_rate,
        "scaleFactor": policy.scale_factor,
    }


def _scaling_from_json(document: Mapping[str, Any]) -> ScalingPolicy:
    return ScalingPolicy(
        ScalingType(document["type"]),
        int(document["minSegments"]),
        int(document.get("targetRate") or 0),
        int(document.get("scaleFactor") or 0),
    )
