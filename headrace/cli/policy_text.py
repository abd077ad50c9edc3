"""Scaling and retention policies in words."""

from __future__ import annotations

from headrace.cli.quantities import duration_text, size_text
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, ScalingType


def scaling_text(policy: ScalingPolicy) -> str:
    """For example "not automatic, at least 2 segments"."""
    if policy.type is ScalingType.FIXED_NUM_SEGMENTS:
        return f"not automatic, at least {count_text(policy.min_segments, 'segment')}"
    unit = "events/s" if policy.type is ScalingType.BY_RATE_IN_EVENTS_PER_SEC else "kB/s"
    return (
        f"{policy.target_rate} {unit} per segment, at least {count_text(policy.min_segments, 'segment')}, "
        f"splits into up to {policy.scale_factor}"
    )


def retention_text(policy: RetentionPolicy | None) -> str:
    """For example "at least 7 d, at most 30 d"."""
    if policy is None:
        return "everything is kept"
    at_most = "" if policy.maximum is None else f", at most {_limit(policy, policy.maximum)}"
    return f"at least {_limit(policy, policy.minimum)}{at_most}"


def count_text(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _limit(policy: RetentionPolicy, value: int) -> str:
    return duration_text(value / 1000) if policy.is_by_time else size_text(value)
