"""Sizes, rates and durations: as people write them, and as people read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy

BYTES_MAX = (1 << 63) - 1
_SIZE = re.compile(r"(\d{1,19})(?:\.(\d{1,9}))?\s?([kmgtp]i?b?|b)?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


def parse_size(text: str) -> int:
    """Bytes of a size such as `512`, `64kB` (thousands) or `4MiB` (powers of 1024).

    Raises:
        InvalidRequestError: it is not a whole number of bytes from 0 to 2^63 - 1.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidRequestError(f"{text[:100]!a} is not a size: expected for example 512, 64kB or 4MiB")
    whole, fraction, unit = match[1], match[2] or "", (match[3] or "").lower()
    base = 1024 if "i" in unit else 1000
    scale: int = base ** _POWERS[unit.rstrip("b").rstrip("i")]
    divisor: int = 10 ** len(fraction)
    size, rest = divmod(int(whole + fraction) * scale, divisor)
    if rest:
        raise InvalidRequestError(f"{text[:100]!a} is not a whole number of bytes")
    if size > BYTES_MAX:
        raise InvalidRequestError(f"{text[:100]!a} is more than {BYTES_MAX} bytes")
    return size


def size_text(size_bytes: float) -> str:
    """A size with at most three digits before the unit, for example `1.2 MB`. Units are powers of 1000."""
    unit = 0
    while unit < len(_UNITS) - 1 and round(size_bytes, 1 if unit else 0) >= 1000:
        size_bytes /= 1000
        unit += 1
    return f"{size_bytes:.0f} B" if unit == 0 else f"{size_bytes:.1f} {_UNITS[unit]}"


def rate_text(bytes_per_s: float) -> str:
    return f"{size_text(bytes_per_s)}/s"


def duration_text(seconds: float) -> str:
    """A duration in its two largest units, for example `2 d 3 h` or `1 min 5 s`."""
    left = round(max(0.0, seconds))
    parts: list[str] = []
    for size, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count or (parts and len(parts) == 1) or unit == "s":
            parts.append(f"{count} {unit}")
    shown = parts[:2]
    return " ".join(part for index, part in enumerate(shown) if index == 0 or not part.startswith("0 "))


def behind_text(seconds: float) -> str:
    """How far a reader is behind. Readers do not tell less than half a minute, which is 0."""
    return duration_text(seconds) if seconds else "< 30 s"


# Scaling and retention policies in words.


def scaling_text(policy: ScalingPolicy) -> str:
    """For example "not automatic, at least 2 segments"."""
    from headrace.model.stream_configuration import ScalingType

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
