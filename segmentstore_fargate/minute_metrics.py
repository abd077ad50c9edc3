"""What a store reports to CloudWatch once a minute, in a line of its log: no request, and no time that a client waits.

The values are those of the metrics page. A count is the difference of two readings of a total. A percentile is that of
the difference of a histogram, interpolated inside its bucket; it is absent if nothing happened. Of a container that
moves to another store, what it did since the last reading is missing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from headrace.codec.embedded_line import embedded_line
from headrace.embedded_metrics import STORE_METRICS
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import WriteConflictError
from headrace.segmentstore.metrics import ContainerMetrics, Histogram, RequestMetrics, percentile
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from segmentstore_fargate.log_watch import ACKNOWLEDGE_S_MAX
from segmentstore_fargate.metrics_page import MeasuredStore

_log = logging.getLogger(__name__)

MINUTE_S: Final = 60.0
REPORT_AT_S: Final = 30.0
"""The second of each minute at which a store reports: far from its ends, so that each minute has one report."""
_MS_PER_S: Final = 1000
_S_PER_DAY: Final = 86_400

Totals = Mapping[Hashable, float]
"""Totals by what counts them: one that is new began at 0."""


class MinuteMetrics:
    """Reads the metrics of a store. Not thread-safe: for its event loop."""

    def __init__(self, measured: MeasuredStore, clock: Clock) -> None:
        self.measured = measured
        self.clock = clock
        self._totals: dict[str, Totals] = {}
        self._counts: dict[str, tuple[int, ...]] = {}
        self._failed: set[str] = set()

    def read(self) -> dict[str, float]:
        """The values since the last call, or since the start. Those that cannot be read are left out, and logged once.

        A count whose reading fails is part of the next difference.
        """
        values: dict[str, float] = {}
        for name, read in READINGS.items():
            try:
                value = read(self, name)
                if value is not None and not math.isfinite(value):
                    raise ValueError(f"{name} is {value}")
            except Exception:  # noqa: BLE001 - metrics must never end a store
                if name not in self._failed:
                    _log.exception("event=metric_not_read metric=%s", name)
                self._failed.add(name)
                continue
            if value is not None:
                values[name] = value
        return values

    def grown(self, name: str, totals: Totals) -> float:
        """By how much the totals have grown since the last reading of this metric."""
        before, self._totals[name] = self._totals.get(name, {}), totals
        return sum(total - before.get(counter, 0) for counter, total in totals.items())

    def new_counts(self, name: str, histogram: Histogram) -> list[int]:
        """The values in each bucket since the last reading of this metric."""
        counts = tuple(histogram.counts)
        before, self._counts[name] = self._counts.get(name, (0,) * len(counts)), counts
        return [count - then for count, then in zip(counts, before, strict=True)]


Reading = Callable[[MinuteMetrics, str], float | None]
"""Reads the value of a metric by its name; None: there is none."""


def _count(totals: Callable[[MeasuredStore], Totals | float]) -> Reading:
    def read(minute: MinuteMetrics, name: str) -> float:
        total = totals(minute.measured)
        return minute.grown(name, total if isinstance(total, Mapping) else {"": total})

    return read


def _gauge(value: Callable[[MeasuredStore], float]) -> Reading:
    return lambda minute, _name: value(minute.measured)


def _percentile(histogram: Callable[[MeasuredStore], Histogram], share: float) -> Reading:
    def read(minute: MinuteMetrics, name: str) -> float | None:
        counts = histogram(minute.measured)
        seconds = percentile(counts.bounds, minute.new_counts(name, counts), share)
        return None if seconds is None else seconds * _MS_PER_S

    return read


def _acks(minute: MinuteMetrics, name: str) -> float:
    return sum(minute.new_counts(name, minute.measured.store.metrics.append_seconds))


def _fast_acks(minute: MinuteMetrics, name: str) -> float:
    histogram = minute.measured.store.metrics.append_seconds
    fast = histogram.bounds.index(ACKNOWLEDGE_S_MAX) + 1
    return sum(minute.new_counts(name, histogram)[:fast])


def _of_containers(total: Callable[[ContainerMetrics], int]) -> Reading:
    """A total of each container, since it was opened: one that is opened again has other metrics."""
    return _count(
        lambda measured: {
            owned.container.metrics: total(owned.container.metrics) for owned in measured.store.owned.values()
        }
    )


def _errors(requests: Iterable[RequestMetrics], *, but_for: str = "") -> int:
    return sum(count for made in requests for code, count in made.errors.items() if code != but_for)


def _storage_errors(measured: MeasuredStore) -> float:
    storages = [each for each in (measured.chunk_storage, measured.log_storage) if each is not None]
    return sum(_errors(storage.requests.values()) for storage in storages)


def _metadata_errors(measured: MeasuredStore) -> float:
    """A condition that does not hold is an answer, not a failure."""
    return _errors(measured.metadata_store.requests.values(), but_for=WriteConflictError.code)


def _certificate_days_left(minute: MinuteMetrics, _name: str) -> float | None:
    tls = minute.measured.tls
    if tls is None or tls.contexts is None:
        return None
    return (tls.contexts.expires_s - minute.clock.now_ms() / _MS_PER_S) / _S_PER_DAY


READINGS: Final[Mapping[str, Reading]] = MappingProxyType(
    {
        "Acks": _acks,
        "AcksFast": _fast_acks,
        "AckP50Ms": _percentile(lambda s: s.store.metrics.append_seconds, 0.5),
        "AckP99Ms": _percentile(lambda s: s.store.metrics.append_seconds, 0.99),
        "CommitP99Ms": _percentile(lambda s: s.journal_metrics.commit_seconds, 0.99),
        "BytesIn": _of_containers(lambda container: container.append_bytes),
        "EventsIn": _of_containers(lambda container: container.append_events),
        "BytesOut": _count(lambda s: s.store.metrics.read_bytes),
        "BytesToOtherZones": _count(lambda s: s.bytes_to_other_zones()),
        "FlushLagSeconds": _gauge(lambda s: s.store.flush_lag_s),
        "UnflushedRatio": _gauge(lambda s: 100 * s.store.pool.untiered_bytes / s.store.pool.capacity_bytes),
        "ThrottledSeconds": _count(lambda s: s.store.metrics.throttled_s),
        "Connections": _gauge(lambda s: s.store.metrics.connections),
        "ConnectionsUsed": _gauge(lambda s: 100 * s.store.metrics.connections / s.listener.connections_max),
        "ConnectionsRefused": _count(lambda s: s.store.metrics.connections_refused.total()),
        "TokenFailures": _count(lambda s: s.store.metrics.tokens_refused.total()),
        "TlsFailures": _count(lambda s: s.store.metrics.handshakes_failed.total()),
        "CertificateDaysLeft": _certificate_days_left,
        "StorageErrors": _count(_storage_errors),
        "MetadataErrors": _count(_metadata_errors),
        "Ready": _gauge(lambda s: int(s.serves())),
    }
)
"""How each of STORE_METRICS is read."""


class MinuteReport:
    """Writes the line of each minute. What fails here is logged once, and never ends the store."""

    def __init__(
        self, read: Callable[[], Mapping[str, float]], service: str, clock: Clock, write: Callable[[str], None]
    ) -> None:
        self._read = read
        self._service = service
        self._clock = clock
        self._write = write
        self._has_failed = False
        self._task = PeriodicTask(self._pass, retry_first_s=MINUTE_S)

    def start(self) -> None:
        self._task.start(Rest.fixed(self.rest_s()))

    async def stop(self) -> None:
        await self._task.stop()

    async def _pass(self) -> Rest:
        self.report()
        return Rest.fixed(self.rest_s())

    def rest_s(self) -> float:
        """Until the next report, in seconds: a timer that is some early must not give a minute two of them."""
        into_minute_s = self._clock.now_ms() / _MS_PER_S % MINUTE_S
        left_s = (REPORT_AT_S - into_minute_s) % MINUTE_S
        return left_s if left_s >= MINUTE_S / 2 else left_s + MINUTE_S

    def report(self) -> None:
        """Write the line of this minute."""
        try:
            values = self._read()
            if values:
                self._write(embedded_line(STORE_METRICS, values, self._service, self._clock.now_ms()))
        except Exception:  # noqa: BLE001 - metrics must never end a store
            if not self._has_failed:
                _log.exception("event=metrics_not_reported")
            self._has_failed = True
