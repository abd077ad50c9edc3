"""The metrics of each container that a store serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.segmentstore.containers.quarantine import quarantined_segments
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.metric_families import Metric


@dataclass(frozen=True, slots=True)
class MeasuredContainer:
    """A container and its store."""

    store: SegmentStore
    owned: OwnedContainer


CONTAINER_METRICS: Final[tuple[Metric[MeasuredContainer], ...]] = (
    Metric(
        "counter",
        "headrace_appends_total",
        "appends that entered the log; one is a block of events",
        lambda c: c.owned.container.metrics.appends,
    ),
    Metric(
        "counter",
        "headrace_append_bytes_total",
        "data of appends that entered the log",
        lambda c: c.owned.container.metrics.append_bytes,
    ),
    Metric(
        "counter",
        "headrace_append_events_total",
        "events in appends that entered the log",
        lambda c: c.owned.container.metrics.append_events,
    ),
    Metric(
        "gauge",
        "headrace_log_operations_in_flight",
        "accepted operations that are not durable yet",
        lambda c: c.owned.container.log.last_sequence - c.owned.container.log.durable_sequence,
    ),
    Metric(
        "gauge",
        "headrace_log_held_bytes",
        "bytes of log that are kept because their data is not in tier 2",
        lambda c: c.owned.container.log.ledger.held_bytes,
    ),
    Metric(
        "gauge",
        "headrace_segments_active",
        "segments in memory",
        lambda c: len(c.owned.container.metadata.segments),
    ),
    Metric(
        "counter",
        "headrace_segments_evicted_total",
        "idle segments that were evicted",
        lambda c: c.owned.container.metrics.evicted_segments,
    ),
    Metric(
        "gauge",
        "headrace_segments_dirty",
        "segments with changes to write to tier 2",
        lambda c: len(c.owned.container.dirty),
    ),
    Metric(
        "gauge",
        "headrace_segments_quarantined",
        "segments that tier 2 refuses for good: they accept no more bytes, and keep the log from being truncated",
        lambda c: quarantined_segments(c.owned.container),
    ),
    Metric(
        "gauge",
        "headrace_flush_lag_seconds",
        "age of the oldest byte that is not in tier 2",
        lambda c: c.owned.container.flush_lag_s,
    ),
    Metric(
        "counter",
        "headrace_flushes_total",
        "objects written to S3 and entered into the chunk directory",
        lambda c: c.owned.container.metrics.flushes,
    ),
    Metric(
        "counter",
        "headrace_flushed_bytes_total",
        "bytes of those objects",
        lambda c: c.owned.container.metrics.flushed_bytes,
    ),
    Metric(
        "counter",
        "headrace_compacted_bytes_total",
        "bytes of small runs that were rewritten as larger ones",
        lambda c: c.owned.container.metrics.compacted_bytes,
    ),
    Metric(
        "counter",
        "headrace_storage_retries_total",
        "passes of the storage writer that failed and were retried",
        lambda c: c.owned.container.metrics.storage_retries,
    ),
    Metric(
        "counter",
        "headrace_storage_refusals_total",
        "attempts that S3 or DynamoDB refused and that are retried",
        lambda c: c.owned.container.metrics.storage_refusals,
    ),
    Metric(
        "gauge",
        "headrace_recovery_seconds",
        "duration of the container's recovery, until it accepted appends",
        lambda c: c.owned.container.metrics.recovery_s,
    ),
    Metric(
        "gauge",
        "headrace_segments_watched",
        "segments whose rate is measured for their scaling policy",
        lambda c: len(c.owned.container.rates),
    ),
    Metric(
        "counter",
        "headrace_scaling_reports_total",
        "reports of segments that are too hot or too cold for their scaling policy",
        lambda c: {("hot",): c.owned.container.rates.hot_reports, ("cold",): c.owned.container.rates.cold_reports},
        ("kind",),
    ),
)
