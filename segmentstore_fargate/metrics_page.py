"""GET /metrics: the metrics of a store in the text format of Prometheus.

The two tables in this module and that of `replication_metrics` define all metrics; docs/operating/metrics.md lists
them. Values are read at each scrape. Every metric of a container has the reserved label `container`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as MetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from headrace.adapters.tcp.listener import WireListener
from headrace.segmentstore.log.journal_thread import Journal
from headrace.segmentstore.measured_ports import MeasuredChunkStorage, MeasuredMetadataStore
from headrace.segmentstore.metrics import JournalMetrics, RequestMetrics
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.metric_families import Metric, Value, metric_family
from segmentstore_fargate.replication_metrics import REPLICATION_METRICS, MeasuredReplication

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class MeasuredStore:
    """The sources of the metrics. `serves` says whether the store is ready."""

    store: SegmentStore
    listener: WireListener
    journal: Journal
    journal_metrics: JournalMetrics
    chunk_storage: MeasuredChunkStorage
    metadata_store: MeasuredMetadataStore
    serves: Callable[[], bool]
    scaling_reports_dropped: Callable[[], int]
    replication: MeasuredReplication | None = None


def _seconds(requests: Mapping[str, RequestMetrics]) -> Mapping[tuple[str, ...], Value]:
    return {(operation,): made.seconds for operation, made in requests.items()}


def _errors(requests: Mapping[str, RequestMetrics]) -> Mapping[tuple[str, ...], Value]:
    return {(operation, code): count for operation, made in requests.items() for code, count in made.errors.items()}


def _by_source(all_of_them: int, from_tier_2: int) -> Mapping[tuple[str, ...], Value]:
    return {("memory",): all_of_them - from_tier_2, ("tier2",): from_tier_2}


def _oldest_file_bytes(measured: MeasuredStore) -> Mapping[tuple[str, ...], Value]:
    """By container, including those that are not served here any more but have a log here."""
    needed = measured.journal.oldest_needed_bytes
    return {(str(number),): needed.get(number, 0) for number in sorted(needed.keys() | measured.store.owned.keys())}


def _openings(store: SegmentStore) -> Mapping[tuple[str, ...], Value]:
    damaged = sum(each.progress.quarantined for each in store.openings.values())
    return {("no",): len(store.openings) - damaged, ("yes",): damaged}


STORE_METRICS: Final[tuple[Metric[MeasuredStore], ...]] = (
    Metric("gauge", "headrace_ready", "1 while every claimed container is served", lambda s: s.serves()),
    Metric(
        "gauge",
        "headrace_containers_opening",
        "containers that are not served yet; `quarantined` says whether their log or tier 2 is damaged",
        lambda s: _openings(s.store),
        ("quarantined",),
    ),
    Metric("gauge", "headrace_connections", "open connections", lambda s: s.store.metrics.connections),
    Metric(
        "counter",
        "headrace_connections_refused_total",
        "connections refused because there were too many",
        lambda s: s.store.metrics.connections_refused,
    ),
    Metric(
        "counter",
        "headrace_protocol_errors_total",
        "connections closed because they broke the protocol",
        lambda s: s.store.metrics.protocol_errors,
    ),
    Metric(
        "histogram",
        "headrace_append_seconds",
        "time from the receipt of an append until it is durable, of the oldest append of each acknowledgement",
        lambda s: s.store.metrics.append_seconds,
    ),
    Metric(
        "histogram",
        "headrace_log_commit_seconds",
        "one group commit of the journal: write and fdatasync",
        lambda s: s.journal_metrics.commit_seconds,
    ),
    Metric(
        "histogram",
        "headrace_log_commit_bytes",
        "bytes of one group commit",
        lambda s: s.journal_metrics.commit_bytes,
    ),
    Metric(
        "gauge",
        "headrace_log_queued_entries",
        "log entries that wait for the current commit to end",
        lambda s: s.journal.queued_entries,
    ),
    Metric(
        "gauge",
        "headrace_journal_bytes",
        "size of the journal's files on the volume, spare files included",
        lambda s: s.journal.space().volume_bytes,
    ),
    Metric(
        "gauge",
        "headrace_journal_log_bytes",
        "the journal from its oldest needed file to its end",
        lambda s: s.journal.space().log_bytes,
    ),
    Metric(
        "gauge",
        "headrace_journal_log_bytes_max",
        "limit of the journal's size, at which clients wait",
        lambda s: s.journal.space().client_bytes,
    ),
    Metric(
        "gauge",
        "headrace_journal_oldest_file_bytes",
        "bytes of the oldest journal file that a container needs; no file is freed before",
        _oldest_file_bytes,
        ("container",),
    ),
    Metric(
        "counter",
        "headrace_journal_copied_bytes_total",
        "bytes of entries copied into the newest journal file, so that the oldest could be freed",
        lambda s: s.journal.copied_bytes,
    ),
    Metric(
        "gauge",
        "headrace_journal_damaged_entries",
        "entries whose checksum was wrong when the journal was read at the start",
        lambda s: s.journal.damaged_entries,
    ),
    Metric(
        "gauge",
        "headrace_throttle_level",
        "the fullest of cache, journal, the containers' shares of it and the bytes that wait for replicas: appends "
        "slow down from 0.75 on, wait at 1",
        lambda s: s.store.throttle.level,
    ),
    Metric("gauge", "headrace_cache_capacity_bytes", "memory for appended data", lambda s: s.store.pool.capacity_bytes),
    Metric("gauge", "headrace_cache_used_bytes", "cache blocks that hold anything", lambda s: s.store.pool.used_bytes),
    Metric(
        "gauge",
        "headrace_cache_unstored_bytes",
        "data in the cache that is not in tier 2: never evicted",
        lambda s: s.store.pool.untiered_bytes,
    ),
    Metric(
        "gauge",
        "headrace_cache_waiting_connections",
        "connections that are not read because the cache is full of data that is not in tier 2",
        lambda s: s.store.pool.waiting,
    ),
    Metric(
        "gauge",
        "headrace_receive_capacity_bytes",
        "memory for partly received commands",
        lambda s: s.listener.receive_memory.total_bytes,
    ),
    Metric(
        "gauge",
        "headrace_receive_used_bytes",
        "the part of that memory that connections use",
        lambda s: s.listener.receive_memory.used_bytes,
    ),
    Metric(
        "gauge",
        "headrace_receive_waiting_connections",
        "connections that are not read because that memory is full",
        lambda s: s.listener.receive_memory.waiting,
    ),
    Metric(
        "counter",
        "headrace_cache_evictions_total",
        "cache blocks that were reused for newer data",
        lambda s: s.store.pool.evicted_blocks,
    ),
    Metric(
        "counter",
        "headrace_throttled_seconds_total",
        "total pauses of all connections because tier 2 does not keep up",
        lambda s: s.store.metrics.throttled_s,
    ),
    Metric(
        "gauge",
        "headrace_table_memory_bytes",
        "memory of table entries that are not in tier 2",
        lambda s: s.store.table_memory.used_bytes,
    ),
    Metric(
        "counter",
        "headrace_reads_total",
        "reads answered with data",
        lambda s: _by_source(s.store.metrics.reads, s.store.metrics.storage_reads),
        ("source",),
    ),
    Metric(
        "counter",
        "headrace_read_bytes_total",
        "bytes of data in answers to reads",
        lambda s: _by_source(s.store.metrics.read_bytes, s.store.metrics.storage_read_bytes),
        ("source",),
    ),
    Metric("gauge", "headrace_held_reads", "reads that wait for data at a tail", lambda s: s.listener.held_reads),
    Metric(
        "histogram",
        "headrace_storage_request_seconds",
        "requests to S3, with the retries of one request, failed ones too",
        lambda s: _seconds(s.chunk_storage.requests),
        ("operation",),
    ),
    Metric(
        "counter",
        "headrace_storage_errors_total",
        "requests to S3 that failed",
        lambda s: _errors(s.chunk_storage.requests),
        ("operation", "code"),
    ),
    Metric(
        "counter",
        "headrace_storage_bytes_total",
        "bytes written to S3 or read from it",
        lambda s: {("put",): s.chunk_storage.put_bytes, ("read",): s.chunk_storage.read_bytes},
        ("operation",),
    ),
    Metric(
        "histogram",
        "headrace_metadata_request_seconds",
        "requests to DynamoDB, with the retries of one request, failed ones too",
        lambda s: _seconds(s.metadata_store.requests),
        ("operation",),
    ),
    Metric(
        "counter",
        "headrace_metadata_errors_total",
        "requests to DynamoDB that failed or whose condition did not hold",
        lambda s: _errors(s.metadata_store.requests),
        ("operation", "code"),
    ),
    Metric(
        "counter",
        "headrace_scaling_reports_dropped_total",
        "reports of hot and cold segments that the queue did not accept in time",
        lambda s: s.scaling_reports_dropped(),
    ),
)


def flush_lag_s(store: SegmentStore, owned: OwnedContainer) -> float:
    """The age of the oldest byte to flush. Flushed segments are skipped: they stay dirty for some passes."""
    since = [
        segment.untiered_since_s
        for segment in owned.container.dirty.values()
        if segment.untiered_since_s is not None and not segment.is_stored
    ]
    return max(0.0, store.clock.monotonic_s() - min(since)) if since else 0.0


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
        "headrace_flush_lag_seconds",
        "age of the oldest byte that is not in tier 2",
        lambda c: flush_lag_s(c.store, c.owned),
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
        "attempts that S3 refused and that are retried",
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


class MetricsPage(Collector):
    """One page for one store."""

    def __init__(self, measured: MeasuredStore) -> None:
        self._measured = measured
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The page in the text format of Prometheus."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[MetricFamily]:
        """Describe no metric, so that registration does not collect them."""
        return iter(())

    def collect(self) -> Iterator[MetricFamily]:
        for metric in STORE_METRICS:
            yield metric_family(metric, {(): self._measured}, ())
        if self._measured.replication is not None:
            for shared in REPLICATION_METRICS:
                yield metric_family(shared, {(): self._measured.replication}, ())
        store = self._measured.store
        containers: dict[tuple[str, ...], MeasuredContainer] = {
            (str(number),): MeasuredContainer(store, owned) for number, owned in sorted(store.owned.items())
        }
        for each in CONTAINER_METRICS:
            yield metric_family(each, containers, ("container",))
