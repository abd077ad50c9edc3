"""Rules that decide when a segment is too hot or too cold for its stream's scaling policy, by decaying average rates.

Rates are in events or KiB per second. Times are seconds of one monotonic clock. The constants are Pravega's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

TICK_S: Final = 5.0
REPORT_EVERY_S: Final = 120.0
"""The time between two checks whether a segment is hot or cold."""

COOLDOWN_S: Final = 600.0
"""The time from when a store first sees a segment, new or not, to the first check of it."""

MUTE_S: Final = 600.0
"""How long a report mutes further reports. A hot report mutes both kinds, a cold one only its own kind."""

SILENT_S: Final = 1200.0
"""A segment without writes for this long is reported as silent: it stays cold until a client writes to it."""

SWEEP_EVERY_S: Final = 300.0

_WINDOWS_MIN: Final = (2, 5, 10, 20)
_DECAYS: Final = tuple(math.exp(-TICK_S / (60 * minutes)) for minutes in _WINDOWS_MIN)
_HOT_AT: Final = ((120.0, 5), (300.0, 2), (600.0, 1))
"""For the averages over 2, 5 and 10 minutes: the age in seconds from which each counts, and the multiple of the target
rate above which the segment is hot."""

_COLD_AGE_S: Final = 1200.0
_COLD_SHARE: Final = 0.5

Averages = tuple[float, float, float, float]


def updated(averages: Averages, amount: float, seconds: float) -> Averages:
    """Averages over about 2, 5, 10 and 20 minutes after `amount` units in `seconds`. The first amount sets them all."""
    instant = amount / seconds
    two, five, ten, twenty = (
        instant + decay * (average - instant) if average else instant
        for average, decay in zip(averages, _DECAYS, strict=True)
    )
    return two, five, ten, twenty


def ticked(averages: Averages, amount: float, age_s: float) -> Averages:
    """Averages after `amount` units were written in the `age_s` seconds since the last tick; more than TICK_S.

    All whole ticks but the last count as idle, and `amount` counts for the rest of the time.
    """
    idle_ticks = max(0, int(age_s // TICK_S) - 1)
    two, five, ten, twenty = (average * decay**idle_ticks for average, decay in zip(averages, _DECAYS, strict=True))
    return updated((two, five, ten, twenty), amount, age_s - idle_ticks * TICK_S)


def splits_wanted(averages: Averages, target: float, age_s: float) -> int:
    """The number of segments into which a segment of this age should be split; 0 if it is not hot."""
    hot = any(
        average > factor * target and age_s > least_age_s
        for average, (least_age_s, factor) in zip(averages, _HOT_AT, strict=False)
    )
    return max(2, int(max(averages[:3]) // target)) if hot else 0


def is_cold(averages: Averages, target: float, age_s: float) -> bool:
    return age_s > _COLD_AGE_S and max(averages[:3]) < target and averages[3] < _COLD_SHARE * target


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """A segment store's report that a segment is hot or cold.

    `splits` is for a hot segment, `silent` for a cold one. `at_ms` is the time of the report in milliseconds since the
    Unix epoch; the controller ignores old reports.
    """

    segment: str
    kind: Literal["hot", "cold"]
    at_ms: int
    splits: int = 0
    silent: bool = False


@dataclass(frozen=True, slots=True)
class SegmentRates:
    """The state of one segment between two ticks."""

    started_s: float
    ticked_s: float
    looked_s: float
    hot_muted_until_s: float
    cold_muted_until_s: float
    averages: Averages = (0.0, 0.0, 0.0, 0.0)

    @classmethod
    def first_seen(cls, now_s: float) -> SegmentRates:
        return cls(now_s, now_s, now_s, now_s, now_s)

    def tick_due(self, now_s: float) -> bool:
        return now_s - self.ticked_s > TICK_S

    def after_tick(self, amount: float, now_s: float) -> SegmentRates:
        """The state after a tick. Call it only if a tick is due."""
        averages = ticked(self.averages, amount, now_s - self.ticked_s)
        return replace(self, averages=averages, ticked_s=now_s)

    def judged(
        self, segment: str, target: float, now_s: float, now_ms: int
    ) -> tuple[SegmentRates, ScalingReport | None]:
        """The state after a check at the time of a write, and the report to send, or None."""
        age_s = now_s - self.started_s
        if now_s - self.looked_s < REPORT_EVERY_S or age_s <= COOLDOWN_S:
            return self, None
        looked = replace(self, looked_s=now_s)
        splits = splits_wanted(self.averages, target, age_s)
        if splits and now_s >= self.hot_muted_until_s:
            muted = replace(looked, hot_muted_until_s=now_s + MUTE_S, cold_muted_until_s=now_s + MUTE_S)
            return muted, ScalingReport(segment, "hot", now_ms, splits=splits)
        if now_s >= self.cold_muted_until_s and is_cold(self.averages, target, age_s):
            return replace(looked, cold_muted_until_s=now_s + MUTE_S), ScalingReport(segment, "cold", now_ms)
        return looked, None


def amortized(amount: float, open_s: float) -> float:
    """The amount that the merge of a transaction counts at once, if the transaction was open for `open_s` seconds.

    It is the share of one tick, if the transaction was open for at least one tick.
    """
    return amount * TICK_S / open_s if open_s >= TICK_S else amount
