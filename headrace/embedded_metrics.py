"""The metrics that segment stores and the canary report to CloudWatch once a minute, each minute in one log line.

A log line in CloudWatch's embedded metric format becomes metrics without a call of its API:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

NAMESPACE: Final = "Headrace"
DIMENSION: Final = "Service"
"""Of each metric here. Its value is the name of the ECS service of a zone's stores, or of the canary's function."""


@dataclass(frozen=True, slots=True)
class EmbeddedMetric:
    """One metric: a value for each minute and each process that reports it."""

    name: str
    unit: Literal["Bytes", "Count", "Milliseconds", "None", "Percent", "Seconds"]
    meaning: str


STORE_METRICS: Final = (
    EmbeddedMetric("Acks", "Count", "acknowledgements of appends in the minute"),
    EmbeddedMetric("AcksFast", "Count", "of them, those within 50 ms"),
    EmbeddedMetric("AckP50Ms", "Milliseconds", "median of the minute's acknowledgements"),
    EmbeddedMetric("AckP99Ms", "Milliseconds", "99th percentile of the minute's acknowledgements"),
    EmbeddedMetric("CommitP99Ms", "Milliseconds", "99th percentile of the minute's group commits of the journal"),
    EmbeddedMetric("BytesIn", "Bytes", "data of appends that entered the log in the minute"),
    EmbeddedMetric("EventsIn", "Count", "events in these appends"),
    EmbeddedMetric("BytesOut", "Bytes", "data in answers to reads in the minute"),
    EmbeddedMetric("BytesToOtherZones", "Bytes", "bytes sent to replicas and clients in other zones in the minute"),
    EmbeddedMetric("FlushLagSeconds", "Seconds", "age of the oldest data that is not in tier 2"),
    EmbeddedMetric("UnflushedRatio", "Percent", "part of the cache that holds data which is not in tier 2"),
    EmbeddedMetric("ThrottledSeconds", "Seconds", "pauses of all connections in the minute"),
    EmbeddedMetric("Connections", "Count", "open connections"),
    EmbeddedMetric("ConnectionsUsed", "Percent", "open connections as part of the most that are allowed"),
    EmbeddedMetric("ConnectionsRefused", "Count", "connections refused in the minute because there were too many"),
    EmbeddedMetric("TokenFailures", "Count", "requests refused in the minute for their delegation token"),
    EmbeddedMetric("TlsFailures", "Count", "connections closed in the minute before their first command"),
    EmbeddedMetric("CertificateDaysLeft", "None", "days until the certificate in use expires; absent without one"),
    EmbeddedMetric("StorageErrors", "Count", "requests to S3 that failed in the minute"),
    EmbeddedMetric("MetadataErrors", "Count", "requests to DynamoDB that failed in the minute"),
    EmbeddedMetric("Ready", "Count", "1 if every claimed container is served, else 0"),
)
"""What each process of a store reports. Counts are those of the minute; totals are on `/metrics`."""

CANARY_METRICS: Final = (
    EmbeddedMetric("CanaryWrites", "Count", "events that the canary tried to write: one for each container"),
    EmbeddedMetric("CanaryFailures", "Count", "of them, those that were not acknowledged or not read back"),
    EmbeddedMetric("CanaryDelayMs", "Milliseconds", "the longest time from an event's write until it was read"),
)
"""What the canary reports each minute: it writes an event to each container and reads it back."""
