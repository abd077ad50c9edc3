"""Names of metrics, collected from where each is declared."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.embedded_metrics import CANARY_METRICS, STORE_METRICS
from infra.constructs.log_alarms import LOG_ALARMS
from segmentstore_fargate import metrics_page
from segmentstore_fargate.container_metrics import CONTAINER_METRICS
from segmentstore_fargate.replication_metrics import REPLICATION_METRICS

ROOT = Path(__file__).resolve().parents[2]

REPORTED_BY_STORES = frozenset(each.name for each in STORE_METRICS)
REPORTED_BY_CANARY = frozenset(each.name for each in CANARY_METRICS)
DECLARED = REPORTED_BY_STORES | REPORTED_BY_CANARY
"""What stores and canary report to CloudWatch."""

COUNTED = frozenset(
    name for path in (ROOT / "functions").rglob("*.py") for name in re.findall(r'\bcount\(\s*"(\w+)"', path.read_text())
)
"""What functions count by functions/observability.py."""

OF_LINES = frozenset(each.metric for each in LOG_ALARMS)
"""What metric filters count."""

_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}
PROMETHEUS = frozenset(
    {
        *(each.name for each in metrics_page.STORE_METRICS),
        *(each.name for each in CONTAINER_METRICS),
        *(each.name for each in REPLICATION_METRICS),
        *_PROCESS,
    }
)
"""What `/metrics` of a store has; the last are those of Prometheus' client, for Linux."""

OF_AWS = {
    "AWS/ApiGateway": {"Count", "4xx", "5xx", "Latency"},
    "AWS/DynamoDB": {
        *("ConsumedReadCapacityUnits", "ConsumedWriteCapacityUnits", "ReadThrottleEvents", "WriteThrottleEvents"),
        "SuccessfulRequestLatency",
    },
    "AWS/ECS": {"CPUUtilization", "EBSFilesystemUtilization", "MemoryUtilization"},
    "AWS/Lambda": {
        *("AsyncEventsDropped", "ConcurrentExecutions", "Duration", "Errors", "Invocations", "Throttles"),
    },
    "AWS/SQS": {
        *("ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesNotVisible"),
        *("ApproximateNumberOfMessagesVisible", "NumberOfMessagesReceived"),
    },
    "ECS/ContainerInsights": {"RunningTaskCount"},
}
"""What AWS documents of its namespaces, as far as alarms and graphs use it."""
