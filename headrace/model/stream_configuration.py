"""The configuration of a stream: scaling and retention policies, tags, time-outs. Constructors check all values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import field
from msgspec.structs import force_setattr

from headrace.model import limits
from headrace.model.arguments import check_argument, check_fields
from headrace.model.documents import Document, about
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.log_classes import LogClass

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class ScalingType(StrEnum):
    """The types of scaling policies, named as in Pravega's REST API."""

    FIXED_NUM_SEGMENTS = "FIXED_NUM_SEGMENTS"
    BY_RATE_IN_EVENTS_PER_SEC = "BY_RATE_IN_EVENTS_PER_SEC"
    BY_RATE_IN_KBYTES_PER_SEC = "BY_RATE_IN_KBYTES_PER_SEC"


class RetentionType(StrEnum):
    """Measure and unit of a retention policy: days and MB as in Pravega's REST API, ms and bytes as in its client."""

    LIMITED_DAYS = "LIMITED_DAYS"
    LIMITED_TIME_MS = "LIMITED_TIME_MS"
    LIMITED_SIZE_MB = "LIMITED_SIZE_MB"
    LIMITED_SIZE_BYTES = "LIMITED_SIZE_BYTES"


DAY_MS = 24 * 3600 * 1000
MB_BYTES = 1024 * 1024
_RETENTION_UNITS = {
    RetentionType.LIMITED_DAYS: (DAY_MS, _INT32_MAX),
    RetentionType.LIMITED_TIME_MS: (1, _INT64_MAX),
    RetentionType.LIMITED_SIZE_MB: (MB_BYTES, _INT32_MAX),
    RetentionType.LIMITED_SIZE_BYTES: (1, _INT64_MAX),
}
"""For each type: the ms or bytes of one unit, and the largest number of units."""


class ScalingPolicy(Document, frozen=True):
    """The number of segments of a stream, and when it changes.

    `target_rate` is in events/s or KB/s of one segment. `scale_factor` is the number of segments into which a hot one
    is split. Both are 0 for a fixed policy.
    """

    type: ScalingType
    min_segments: int
    target_rate: Annotated[int, about("Events/s or KB/s of one segment")] = 0
    scale_factor: Annotated[int, about("Into how many segments a hot one is split")] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_range("minSegments", self.min_segments, 1, limits.SEGMENTS_PER_STREAM_MAX)
        if self.type is ScalingType.FIXED_NUM_SEGMENTS:
            _check_range("targetRate of a fixed scaling policy", self.target_rate, 0, 0)
            _check_range("scaleFactor of a fixed scaling policy", self.scale_factor, 0, 0)
        else:
            _check_range("targetRate", self.target_rate, 1, _INT32_MAX)
            _check_range("scaleFactor", self.scale_factor, 2, limits.SEGMENTS_PER_STREAM_MAX)

    @classmethod
    def fixed(cls, segments: int) -> ScalingPolicy:
        """A policy with a constant number of segments; only a manual scale changes it."""
        return cls(ScalingType.FIXED_NUM_SEGMENTS, segments)

    @classmethod
    def by_event_rate(cls, target_events_per_s: int, scale_factor: int, min_segments: int) -> ScalingPolicy:
        return cls(ScalingType.BY_RATE_IN_EVENTS_PER_SEC, min_segments, target_events_per_s, scale_factor)

    @classmethod
    def by_data_rate(cls, target_kbytes_per_s: int, scale_factor: int, min_segments: int) -> ScalingPolicy:
        return cls(ScalingType.BY_RATE_IN_KBYTES_PER_SEC, min_segments, target_kbytes_per_s, scale_factor)


class RetentionPolicy(Document, frozen=True):
    """The limits of retention, in the unit of the type: `value` is kept at least, `max_value` (if given) at most."""

    type: RetentionType
    value: Annotated[int, about("Kept at least: days, ms, MB or bytes, as the type says")]
    max_value: Annotated[int | None, about("Kept at most, in the same unit")] = None

    def __post_init__(self) -> None:
        check_fields(self)
        _, most = _RETENTION_UNITS[self.type]
        _check_range("retentionPolicy.value", self.value, 1, most)
        if self.max_value is not None:
            _check_range("retentionPolicy.maxValue", self.max_value, self.value, most)

    @classmethod
    def by_time(cls, least_ms: int, most_ms: int | None = None) -> RetentionPolicy:
        """A policy by time: in days if the limits are whole days, else in ms."""
        return cls._exact(RetentionType.LIMITED_DAYS, RetentionType.LIMITED_TIME_MS, least_ms, most_ms)

    @classmethod
    def by_size(cls, least_bytes: int, most_bytes: int | None = None) -> RetentionPolicy:
        """A policy by size: in MB if the limits are whole MB, else in bytes."""
        return cls._exact(RetentionType.LIMITED_SIZE_MB, RetentionType.LIMITED_SIZE_BYTES, least_bytes, most_bytes)

    @property
    def is_by_time(self) -> bool:
        return self.type in (RetentionType.LIMITED_DAYS, RetentionType.LIMITED_TIME_MS)

    @property
    def minimum(self) -> int:
        """The least that must be kept, in ms or bytes."""
        return self.value * _RETENTION_UNITS[self.type][0]

    @property
    def maximum(self) -> int | None:
        """The most that is kept, in ms or bytes."""
        return None if self.max_value is None else self.max_value * _RETENTION_UNITS[self.type][0]

    @classmethod
    def _exact(cls, coarse: RetentionType, fine: RetentionType, least: int, most: int | None) -> RetentionPolicy:
        check_argument("RetentionPolicy: the least", least, int)
        check_argument("RetentionPolicy: the most", most, int | None)
        unit, number_max = _RETENTION_UNITS[coarse]
        is_exact = least % unit == 0 and (most or 0) % unit == 0 and max(least, most or 0) // unit <= number_max
        if not is_exact:
            return cls(fine, least, most)
        return cls(coarse, least // unit, None if most is None else most // unit)


class StreamSettings(Document, frozen=True):
    """The part of a stream's configuration that an update replaces. `tags` are sorted and unique.

    Raises:
        InvalidRequestError: a value is out of its range, or there are too many or too long tags.
    """

    scaling: ScalingPolicy = field(name="scalingPolicy")
    retention: RetentionPolicy | None = field(default=None, name="retentionPolicy")
    tags: tuple[str, ...] = field(default=(), name="streamTags")
    timestamp_aggregation_timeout_ms: Annotated[int, about("Milliseconds")] = 0
    rollover_size_bytes: int = 0

    def __post_init__(self) -> None:
        _check_range("timestampAggregationTimeout", self.timestamp_aggregation_timeout_ms, 0, _INT64_MAX)
        _check_range("rolloverSizeBytes", self.rollover_size_bytes, 0, _INT64_MAX)
        force_setattr(self, "tags", tuple(sorted(set(self.tags))))
        _check_tags(self.tags)


class StreamConfiguration(StreamSettings, frozen=True):
    """The configuration of a stream. `log_class` never changes."""

    log_class: Annotated[
        LogClass, about("Who acknowledges an append: its stores (the default) or S3; fixed at the creation")
    ] = field(default=LogClass.STORES, name="acknowledgedBy")


def check_tag(tag: str) -> str:
    """Returns `tag` if it is a valid tag, else raises InvalidRequestError."""
    if not 1 <= len(tag) <= limits.TAG_CHARACTERS_MAX or not _is_unicode(tag):
        raise InvalidRequestError(
            f"the tag {tag[:64]!a} is not allowed: a tag is text of 1 to {limits.TAG_CHARACTERS_MAX} characters",
            details={"characters": len(tag), "characters_max": limits.TAG_CHARACTERS_MAX},
        )
    return tag


def _check_tags(tags: tuple[str, ...]) -> None:
    if len(tags) > limits.TAGS_PER_STREAM_MAX:
        raise InvalidRequestError(
            f"a stream has at most {limits.TAGS_PER_STREAM_MAX} tags, not {len(tags)}",
            details={"tags": len(tags), "tags_max": limits.TAGS_PER_STREAM_MAX},
        )
    length_bytes = sum(len(check_tag(tag).encode()) for tag in tags)
    if length_bytes > limits.TAGS_BYTES_MAX:
        raise InvalidRequestError(
            f"the tags of a stream take at most {limits.TAGS_BYTES_MAX} bytes together, not {length_bytes}",
            details={"length_bytes": length_bytes, "length_bytes_max": limits.TAGS_BYTES_MAX},
        )


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(
            f"{name} is {value}: it must be between {least} and {most}",
            details={"field": name, "value": value, "min": least, "max": most},
        )


def _is_unicode(text: str) -> bool:
    """Whether the text has no lone surrogates. JSON can contain them, and no store can keep them."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


# An update of a stream's configuration: the values before and after, and the changes that it implies.

CONFIGURATION_CHANGED = "configuration_changed"


@dataclass(frozen=True, slots=True)
class ConfigurationUpdate:
    """`version` is the version of the configuration after the update."""

    before: StreamConfiguration
    after: StreamConfiguration
    version: int

    @property
    def added_tags(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.after.tags) - set(self.before.tags)))

    @property
    def removed_tags(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.before.tags) - set(self.after.tags)))

    @property
    def raises_minimum(self) -> bool:
        return self.after.scaling.min_segments > self.before.scaling.min_segments

    @property
    def changes_rate(self) -> bool:
        """Whether the segment stores must measure the active segments against another rate."""
        before, after = self.before.scaling, self.after.scaling
        return (before.type, before.target_rate) != (after.type, after.target_rate)


def check_log_class(scoped_name: str, present: LogClass, given: LogClass | None) -> None:
    """Raises InvalidRequestError, code "log_class_fixed", unless `given` is the present class or None."""
    if given not in (None, present):
        raise InvalidRequestError(
            f"stream {scoped_name} is acknowledged by {present}: create another stream for another class",
            details={"acknowledgedBy": str(present)},
            code="log_class_fixed",
        )


def check_configuration_version(scoped_name: str, version: int, expected: int | None) -> None:
    """Raises IllegalStateError, code "configuration_changed", unless `expected` is the version or None."""
    if expected not in (None, version):
        raise IllegalStateError(
            f"the configuration of {scoped_name} has version {version}, the update expects {expected}: another update "
            "came first, read the configuration again",
            details={"configurationVersion": version, "expectedConfigurationVersion": expected},
            code=CONFIGURATION_CHANGED,
        )
