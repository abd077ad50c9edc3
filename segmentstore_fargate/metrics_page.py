"""GET /metrics: the metrics of a store in the text format of Prometheus.

The tables in this module, in `container_metrics` and in `replication_metrics` define all metrics;
docs/operating/metrics.md lists them. Values are read at each scrape. Every metric of a container has the reserved label
`container`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as MetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from headrace.adapters.tcp.arrivals import Failure
from headrace.adapters.tcp.listener import Bound, WireListener
from headrace.codec.delegation_tokens import TOKEN_EXPIRED, TOKEN_INVALID
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.metrics import JournalMetrics, MeasuredChunkStorage, MeasuredMetadataStore, RequestMetrics
from headrace.segmentstore.store import SegmentStore
from headrace.zones import LOCAL_ZONE, UNKNOWN_ZONE
from segmentstore_fargate.container_metrics import CONTAINER_METRICS, MeasuredContainer
from segmentstore_fargate.metric_families import Metric, Value, metric_family
from segmentstore_fargate.replication_metrics import REPLICATION_METRICS, MeasuredReplication
from segmentstore_fargate.tls_upkeep import TlsUpkeep

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class MeasuredStore:
    """The sources of the metrics. `serves` says whether the store is ready, `log_storage` holds logs in S3."""

    store: SegmentStore
    listener: WireListener
    journal: Journal
    journal_metrics: JournalMetrics
    chunk_storage: MeasuredChunkStorage
    metadata_store: MeasuredMetadataStore
    serves: Callable[[], bool]
    scaling_reports_dropped: Callable[[], int]
    replication: MeasuredReplication | None = None
    log_storage: MeasuredChunkStorage | None = None
    tls: TlsUpkeep | None = None
    zone: str = LOCAL_ZONE

    def bytes_to_other_zones(self) -> int:
        """Sent to clients and to replicas. Those whose zone is not known do not count, and all stores of a machine do
        not either."""
        replicas = self.replication.ledgers.metrics.sent_bytes if self.replication is not None else {}
        sent = (*self.store.metrics.sent_bytes.items(), *replicas.items())
        return sum(count for zone, count in sent if zone not in ("", self.zone, UNKNOWN_ZONE))


def _by_use(
    measured: MeasuredStore, read: Callable[[MeasuredChunkStorage], Mapping[tuple[str, ...], Value]]
) -> Mapping[tuple[str, ...], Value]:
    uses = (("tier2", measured.chunk_storage), ("log", measured.log_storage))
    return {(use, *key): value for use, storage in uses if storage for key, value in read(storage).items()}


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
        "connections refused because there were too many: in total, or from their address",
        lambda s: {(bound.value,): s.store.metrics.connections_refused[bound] for bound in Bound},
        ("reason",),
    ),
    Metric(
        "counter",
        "headrace_plaintext_connections_total",
        "connections without TLS that were served",
        lambda s: s.store.metrics.plaintext_connections,
    ),
    Metric(
        "counter",
        "headrace_handshakes_failed_total",
        "connections that were closed before their first command, by reason",
        lambda s: {(reason.value,): s.store.metrics.handshakes_failed[reason] for reason in Failure},
        ("reason",),
    ),
    Metric(
        "gauge",
        "headrace_certificate_expiry_seconds",
        "when the certificate in use expires, in seconds since the Unix epoch; 0 without one",
        lambda s: s.tls.contexts.expires_s if s.tls is not None and s.tls.contexts is not None else 0,
    ),
    Metric(
        "counter",
        "headrace_certificate_reload_failures_total",
        "attempts to load the certificate again that failed, so that the former one stayed in use",
        lambda s: s.tls.reload_failures if s.tls is not None else 0,
    ),
    Metric(
        "counter",
        "headrace_tokens_refused_total",
        "requests refused for their delegation token: it was not valid for them, or had expired",
        lambda s: {(code,): s.store.metrics.tokens_refused[code] for code in (TOKEN_INVALID, TOKEN_EXPIRED)},
        ("reason",),
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
        "one group commit of the journal: write and sync",
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
    Metric(
        "counter",
        "headrace_client_sent_bytes_total",
        "bytes sent to clients, by the zone of the client's address; before TLS",
        lambda s: {(zone,): count for zone, count in sorted(s.store.metrics.sent_bytes.items())},
        ("zone",),
    ),
    Metric("gauge", "headrace_held_reads", "reads that wait for data at a tail", lambda s: s.listener.held_reads),
    Metric(
        "histogram",
        "headrace_storage_request_seconds",
        "requests to S3, with the retries of one request, failed ones too",
        lambda s: _by_use(s, lambda storage: _seconds(storage.requests)),
        ("use", "operation"),
    ),
    Metric(
        "counter",
        "headrace_storage_errors_total",
        "requests to S3 that failed",
        lambda s: _by_use(s, lambda storage: _errors(storage.requests)),
        ("use", "operation", "code"),
    ),
    Metric(
        "counter",
        "headrace_storage_bytes_total",
        "bytes written to S3 or read from it",
        lambda s: _by_use(s, lambda storage: {("put",): storage.put_bytes, ("read",): storage.read_bytes}),
        ("use", "operation"),
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
