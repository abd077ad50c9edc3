"""What graphs of stores show, declared once for CloudWatch and for Grafana.

CloudWatch has what stores report each minute (headrace/embedded_metrics.py), Prometheus what it reads from `/metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Row = Literal["objectives", "traffic", "errors", "latency", "saturation", "background"]
ROWS: Final[tuple[Row, ...]] = ("objectives", "traffic", "errors", "latency", "saturation", "background")
"""The rows of both dashboards, in their order."""

ACK_LINE_MS: Final = 50
CPU_LINE_PERCENT: Final = 60
"""Objectives hold below this part of the capacity."""


@dataclass(frozen=True, slots=True)
class StorePanel:
    """A graph. `reports` are reported metrics with the statistic over a zone's processes, `queries` PromQL and labels.

    `unit` is one of Grafana. `line` is drawn across: where an alarm is raised, or an objective missed.
    """

    row: Row
    title: str
    unit: str
    reports: tuple[tuple[str, str], ...] = ()
    queries: tuple[tuple[str, str], ...] = ()
    line: float | None = None


def _quantile(quantile: float, name: str) -> str:
    return f"1000 * histogram_quantile({quantile}, sum by (le, instance) (rate({name}_bucket[5m])))"


def _burn_rate(window: str) -> str:
    fast = f'sum(rate(headrace_append_seconds_bucket{{le="0.05"}}[{window}]))'
    return f"(1 - {fast} / sum(rate(headrace_append_seconds_count[{window}]))) / 0.01"


STORE_PANELS: Final = (
    StorePanel(
        "objectives",
        "Burn rate of acknowledgements within 50 ms",
        "none",
        queries=((_burn_rate("1h"), "1 h"), (_burn_rate("6h"), "6 h")),
        line=14.4,
    ),
    StorePanel(
        "objectives",
        "Stores that serve all their containers",
        "none",
        (("Ready", "Minimum"),),
        (("headrace_ready", "{{instance}}"),),
    ),
    StorePanel(
        "traffic",
        "Bytes written and read",
        "Bps",
        (("BytesIn", "Sum"), ("BytesOut", "Sum")),
        (
            ("sum by (instance) (rate(headrace_append_bytes_total[5m]))", "{{instance}} in"),
            ("sum by (instance) (rate(headrace_read_bytes_total[5m]))", "{{instance}} out"),
        ),
    ),
    StorePanel(
        "traffic",
        "Bytes sent to other zones",
        "Bps",
        (("BytesToOtherZones", "Sum"),),
        (
            ("sum by (instance, zone) (rate(headrace_replica_sent_bytes_total[5m]))", "{{instance}} copies {{zone}}"),
            ("sum by (instance, zone) (rate(headrace_client_sent_bytes_total[5m]))", "{{instance}} clients {{zone}}"),
        ),
    ),
    StorePanel(
        "traffic",
        "Events written",
        "cps",
        (("EventsIn", "Sum"),),
        (("sum by (instance) (rate(headrace_append_events_total[5m]))", "{{instance}}"),),
    ),
    StorePanel(
        "errors",
        "Refused connections",
        "cps",
        (("ConnectionsRefused", "Sum"),),
        (("sum by (instance, reason) (rate(headrace_connections_refused_total[5m]))", "{{instance}} {{reason}}"),),
    ),
    StorePanel(
        "errors",
        "Failures of tokens and TLS",
        "cps",
        (("TokenFailures", "Sum"), ("TlsFailures", "Sum")),
        (
            ("sum by (instance, reason) (rate(headrace_tokens_refused_total[5m]))", "{{instance}} token {{reason}}"),
            ("sum by (instance, reason) (rate(headrace_handshakes_failed_total[5m]))", "{{instance}} TLS {{reason}}"),
        ),
    ),
    StorePanel(
        "errors",
        "Failed requests to S3 and DynamoDB",
        "cps",
        (("StorageErrors", "Sum"), ("MetadataErrors", "Sum")),
        (
            ("sum by (instance, code) (rate(headrace_storage_errors_total[5m]))", "{{instance}} S3 {{code}}"),
            ("sum by (instance, code) (rate(headrace_metadata_errors_total[5m]))", "{{instance}} DynamoDB {{code}}"),
        ),
    ),
    StorePanel(
        "latency",
        "Acknowledgements, p50 and p99",
        "ms",
        (("AckP50Ms", "Maximum"), ("AckP99Ms", "Maximum")),
        (
            (_quantile(0.5, "headrace_append_seconds"), "{{instance}} p50"),
            (_quantile(0.99, "headrace_append_seconds"), "{{instance}} p99"),
        ),
        line=ACK_LINE_MS,
    ),
    StorePanel(
        "latency",
        "Group commits of the journal, p99",
        "ms",
        (("CommitP99Ms", "Maximum"),),
        ((_quantile(0.99, "headrace_log_commit_seconds"), "{{instance}}"),),
    ),
    StorePanel(
        "latency",
        "Requests to S3, p99",
        "ms",
        queries=((_quantile(0.99, "headrace_storage_request_seconds"), "{{instance}}"),),
    ),
    StorePanel(
        "latency",
        "Requests to DynamoDB, p99",
        "ms",
        queries=((_quantile(0.99, "headrace_metadata_request_seconds"), "{{instance}}"),),
    ),
    StorePanel(
        "saturation",
        "CPU of the process",
        "percent",
        queries=(("100 * rate(process_cpu_seconds_total[5m])", "{{instance}}"),),
        line=CPU_LINE_PERCENT,
    ),
    StorePanel(
        "saturation",
        "Memory of the process",
        "bytes",
        queries=(("process_resident_memory_bytes", "{{instance}}"),),
    ),
    StorePanel(
        "saturation",
        "Cache with data that is not in S3",
        "percent",
        (("UnflushedRatio", "Maximum"),),
        (("100 * headrace_cache_unstored_bytes / headrace_cache_capacity_bytes", "{{instance}}"),),
        line=70,
    ),
    StorePanel(
        "saturation",
        "Journal of its limit",
        "percent",
        queries=(("100 * headrace_journal_log_bytes / headrace_journal_log_bytes_max", "{{instance}}"),),
    ),
    StorePanel(
        "saturation",
        "Pauses of connections in a minute",
        "s",
        (("ThrottledSeconds", "Sum"),),
        (("60 * rate(headrace_throttled_seconds_total[5m])", "{{instance}}"),),
        line=10,
    ),
    StorePanel(
        "saturation",
        "Connections",
        "none",
        (("Connections", "Sum"),),
        (("headrace_connections", "{{instance}}"),),
    ),
    StorePanel(
        "saturation", "Connections of the most that are allowed", "percent", (("ConnectionsUsed", "Maximum"),), line=80
    ),
    StorePanel(
        "background",
        "Age of the oldest data that is not in S3",
        "s",
        (("FlushLagSeconds", "Maximum"),),
        (("max by (instance) (headrace_flush_lag_seconds)", "{{instance}}"),),
        line=60,
    ),
    StorePanel(
        "background",
        "Segments in quarantine",
        "none",
        queries=(("sum by (instance) (headrace_segments_quarantined)", "{{instance}}"),),
    ),
    StorePanel(
        "background",
        "Days until certificates end",
        "none",
        (("CertificateDaysLeft", "Minimum"),),
        (("((headrace_certificate_expiry_seconds > 0) - time()) / 86400", "{{instance}}"),),
        line=7,
    ),
)
