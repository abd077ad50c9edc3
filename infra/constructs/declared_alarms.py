"""The alarms of a deployment, except those on lines of the stores' log (`log_alarms`) and on objectives (`burn_rates`).

Missing data raises no alarm, except where silence means that something does not run. docs/operating/runbooks.md says
what to do about each; names with a queue, a function or a zone share a section.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from headrace import topology
from headrace.topology.services import GRPC_BRIDGE
from infra.constructs.alarms import Alarm
from infra.constructs.audit_subscriptions import FILTER_NAME
from infra.constructs.deployed_resources import (
    BRIDGE_SERVICE_NAME,
    CANARY_NAME,
    OUTSIDE_SERVICE_NAME,
    service_name,
)
from infra.constructs.log_alarms import log_alarms
from infra.constructs.named_metrics import (
    PERIOD,
    api_metric,
    bridge_metric,
    counted_by_any,
    counted_metric,
    function_metric,
    queue_metric,
    reported_metric,
    store_insight,
    store_metric,
    table_metric,
)
from infra.settings import Settings

FIVE_MINUTES = cdk.Duration.minutes(5)
ONE_DAY = cdk.Duration.days(1)
"""The longest time that an alarm evaluates."""
OLDEST_MESSAGE_AGE_S_MAX = 300
"""A stream operation takes seconds. If a message waits for minutes, its queue is not processed."""
FUNCTION_ERRORS_MAX = 3
"""Per five minutes: a single failure is retried by queue or caller."""
THROTTLED_PERIODS = 2
"""Of five minutes each: a burst is throttled for seconds, an account without free executions for longer."""
TABLE_THROTTLES_MAX = 100
"""Per five minutes: clients retry single ones, and a partition that has become hot is split by DynamoDB meanwhile."""
VOLUME_USED_PERCENT_MAX = 80
"""Of the file system. ECS reports it by service; Container Insights has its gigabytes by volume only."""
MEMORY_USED_PERCENT_MAX = 90
EXTERNAL_PERIODS = 5
"""Of a minute each: the load balancer takes up to three of them until it passes connections to a new target."""
SILENT_MINUTES = 10
"""A task that is replaced reports nothing until the new one runs."""
TOKEN_FAILURES_MAX = 50
"""Per minute, of all stores: a client fetches another token when one is refused."""
STORAGE_ERRORS_MAX = 10
"""Per minute, of all stores: each request is repeated."""
API_FAULTS_MAX = 5
"""Per five minutes: responses 5xx, including those of throttled functions. Clients repeat calls, so few do no harm."""
API_LATENCY_MS_MAX = 1_500
"""Of 99 % of the calls, those included that start a function."""

TICKS = topology.function("ticks")
CLUSTER_WATCHERS = (TICKS, topology.function("store-tasks"))
"""The functions that check the segment stores and count the results."""


class _StoreReport(NamedTuple):
    """An alarm on what the processes of a zone report each minute."""

    suffix: str
    metric: str
    statistic: str
    threshold: float
    minutes: int
    meaning: str


_STORE_REPORTS = (
    _StoreReport("flush-lag", "FlushLagSeconds", "Maximum", 60, 5, "Data of a store waits longer than a minute for S3"),
    _StoreReport(
        "throttling", "ThrottledSeconds", "Sum", 10, 10, "A store pauses connections, because it cannot keep up"
    ),
    _StoreReport(
        "cache-unflushed", "UnflushedRatio", "Maximum", 70, 5, "The cache of a store fills with data that is not in S3"
    ),
    _StoreReport(
        "connections", "ConnectionsUsed", "Maximum", 80, 5, "A store has almost as many connections as it may"
    ),
)


def declared_alarms(settings: Settings) -> list[Alarm]:
    """All that do not need the id of the API."""
    zones = range(settings.zone_count)
    return [
        *(alarm for queue in topology.QUEUES for alarm in _queue_alarms(queue)),
        *(alarm for function in topology.FUNCTIONS for alarm in _function_alarms(function)),
        *(alarm for zone in zones for alarm in _store_alarms(zone, settings)),
        *_all_stores_alarms(settings),
        *_cluster_alarms(replicated=settings.is_replicated),
        *(each.alarm for each in log_alarms(replicated=settings.is_replicated)),
        *_background_alarms(),
        *(_canary_alarms() if settings.canary else ()),
        *_security_alarms(settings),
        *(_bridge_alarms() if settings.grpc_bridge else ()),
        *(_external_alarms(has_bridge=settings.grpc_bridge) if settings.external_domain is not None else ()),
    ]


def api_alarms(api_id: str) -> list[Alarm]:
    """Of the HTTP API, in addition to its burn rate."""
    return [
        Alarm(
            "headrace-api-faults",
            "The HTTP API answers 5xx",
            api_metric(api_id, "5xx", period=FIVE_MINUTES),
            API_FAULTS_MAX,
        ),
        Alarm(
            "headrace-api-latency",
            "One call of the HTTP API in a hundred takes longer than 1.5 s",
            api_metric(api_id, "Latency", "p99", FIVE_MINUTES),
            API_LATENCY_MS_MAX,
            periods=3,
        ),
    ]


def _queue_alarms(queue: topology.Queue) -> list[Alarm]:
    name = queue.name.removesuffix(".fifo")
    letters = cloudwatch.MathExpression(
        # A function removes messages within seconds unless it fails, so both waiting and received ones count.
        expression="FILL(waiting, 0) + FILL(received, 0)",
        using_metrics={
            "waiting": queue_metric(queue.dead_letters, "ApproximateNumberOfMessagesVisible", "Maximum"),
            "received": queue_metric(queue.dead_letters, "NumberOfMessagesReceived", "Sum"),
        },
        period=PERIOD,
    )
    age = queue_metric(queue, "ApproximateAgeOfOldestMessage", "Maximum")
    return [
        Alarm(
            f"{name}-dead-letters",
            "The last attempt to carry out a message failed",
            letters,
            anchor="headrace-queue-dead-letters",
        ),
        Alarm(
            f"{name}-age",
            "Background work waits and is not done",
            age,
            OLDEST_MESSAGE_AGE_S_MAX,
            periods=3,
            anchor="headrace-queue-age",
        ),
    ]


def _function_alarms(function: topology.Function) -> list[Alarm]:
    name = f"headrace-{function.name}"
    return [
        Alarm(
            f"{name}-errors",
            "The function fails again and again",
            function_metric(function, "Errors", period=FIVE_MINUTES),
            FUNCTION_ERRORS_MAX,
            anchor=None if function.name == topology.AUDIT_LOG_FUNCTION else "headrace-function-errors",
        ),
        Alarm(
            f"{name}-throttles",
            "Lambda refuses to start the function: the account or its reservation has no execution left",
            function_metric(function, "Throttles", period=FIVE_MINUTES),
            periods=THROTTLED_PERIODS,
            anchor="headrace-function-throttles",
        ),
    ]


def _store_alarms(zone: int, settings: Settings) -> list[Alarm]:
    store, anchor = f"headrace-store-{zone}", "headrace-store-zone"
    service = service_name(zone)
    alarms = [
        Alarm(
            f"{store}-running",
            "A segment store of this zone does not run: other stores take its containers over",
            store_insight(zone, "RunningTaskCount", "Minimum"),
            settings.stores_per_zone,
            periods=5,
            is_below=True,
            is_silence_bad=True,
            anchor=f"{anchor}-running",
        ),
        Alarm(
            f"{store}-volume",
            "The journal volume fills: data does not reach S3",
            store_metric(zone, "EBSFilesystemUtilization", "Maximum"),
            VOLUME_USED_PERCENT_MAX,
            periods=3,
            severity="page",
            anchor=f"{anchor}-volume",
        ),
        Alarm(
            f"{store}-memory",
            "The segment store is about to run out of memory",
            store_metric(zone, "MemoryUtilization", "Maximum"),
            MEMORY_USED_PERCENT_MAX,
            periods=5,
            anchor=f"{anchor}-memory",
        ),
        Alarm(
            f"{store}-metrics-missing",
            "No store of this zone reports its metrics, so other alarms on them are silent",
            reported_metric(service, "Ready", "SampleCount"),
            1,
            periods=SILENT_MINUTES,
            is_below=True,
            is_silence_bad=True,
            anchor=f"{anchor}-metrics-missing",
        ),
    ]
    alarms += [
        Alarm(
            f"{store}-{each.suffix}",
            each.meaning,
            reported_metric(service, each.metric, each.statistic),
            each.threshold,
            periods=each.minutes,
            anchor=f"{anchor}-{each.suffix}",
        )
        for each in _STORE_REPORTS
    ]
    if settings.has_certificates:
        alarms.append(
            Alarm(
                f"{store}-certificate-expiry",
                "The certificate that a store shows ends within a week",
                reported_metric(service, "CertificateDaysLeft", "Minimum", FIVE_MINUTES),
                7,
                is_below=True,
                anchor=f"{anchor}-certificate-expiry",
            )
        )
    return alarms


def _sum_of_stores(zones: int, metric: str) -> cloudwatch.MathExpression:
    reported = {f"zone{zone}": reported_metric(service_name(zone), metric, "Sum") for zone in range(zones)}
    return cloudwatch.MathExpression(
        expression=" + ".join(f"FILL({id_}, 0)" for id_ in reported),
        using_metrics=dict(reported),
        period=PERIOD,
        label=metric,
    )


def _all_stores_alarms(settings: Settings) -> list[Alarm]:
    alarms = [
        Alarm(
            "headrace-s3-errors",
            "Requests of the stores to S3 fail again and again",
            _sum_of_stores(settings.zone_count, "StorageErrors"),
            STORAGE_ERRORS_MAX,
            periods=5,
        )
    ]
    if settings.tokens:
        alarms.append(
            Alarm(
                "headrace-token-failures",
                "Stores refuse many requests for their delegation token",
                _sum_of_stores(settings.zone_count, "TokenFailures"),
                TOKEN_FAILURES_MAX,
                periods=5,
            )
        )
    return alarms


def _canary_alarms() -> list[Alarm]:
    return [
        Alarm(
            "headrace-canary-failed",
            "Events that are written for a test each minute are not acknowledged or not read back",
            reported_metric(CANARY_NAME, "CanaryFailures", "Sum"),
            periods=3,
            datapoints=2,
            severity="page",
            is_silence_bad=True,
        )
    ]


def _cluster_alarms(*, replicated: bool) -> list[Alarm]:
    """Counts of the tick, six times a minute while something is wrong: the minimum says that it lasted."""
    lost = Alarm(
        "headrace-stores-lost",
        "A segment store has lost its lease and is not back",
        # An event counts a store once.
        counted_metric(TICKS, "StoresLost", "Minimum"),
        periods=3,
    )
    if not replicated:  # a log that replicas have is never discarded
        discarded = Alarm(
            "headrace-containers-given-up",
            "Containers went on without what only their lost store had: acknowledged events may be missing",
            counted_by_any(CLUSTER_WATCHERS, "ContainersGivenUp"),
            severity="page",
        )
        return [lost, discarded]
    gate = topology.REPLICATION_GATE
    return [
        lost,
        Alarm(
            "headrace-log-blocked",
            "A container waits for replicas that do not answer: nothing of it is served",
            counted_metric(TICKS, "LogsBlocked", "Minimum"),
            severity="page",
        ),
        Alarm(
            "headrace-log-under-replicated",
            "Logs have two copies: a zone has no store, or a new copy does not become complete",
            counted_metric(TICKS, "LogsUnderReplicated", "Minimum"),
            periods=10,
        ),
        Alarm(
            "headrace-log-single-copy",
            "Logs have one copy that serves: their appends are not acknowledged",
            counted_metric(TICKS, "LogsWithOneCopy", "Minimum"),
            severity="page",
        ),
        Alarm(
            "headrace-store-isolated",
            "A segment store reaches no other store: its network or host",
            counted_metric(TICKS, "StoresIsolated", "Minimum"),
            periods=3,
        ),
        Alarm(
            "headrace-replication-gate",
            "A deployment waits between two zones, because a log lacks copies: it fails after 53 minutes",
            counted_metric(gate, "GatesWaiting", "Minimum"),
            periods=15,
        ),
        Alarm(
            f"headrace-{gate.name}-errors",
            "The function behind the gates of a deployment fails: CloudFormation waits up to 15 minutes for its report",
            function_metric(gate, "Errors", period=FIVE_MINUTES),
        ),
    ]


def _background_alarms() -> list[Alarm]:
    copier = topology.function(topology.AUDIT_LOG_FUNCTION)
    throttles = cloudwatch.MathExpression(
        expression="FILL(reads, 0) + FILL(writes, 0)",
        using_metrics={
            "reads": table_metric("ReadThrottleEvents", FIVE_MINUTES),
            "writes": table_metric("WriteThrottleEvents", FIVE_MINUTES),
        },
        period=FIVE_MINUTES,
    )
    lines_lost = cloudwatch.MathExpression(
        expression="FILL(dropped, 0) + FILL(refused, 0)",
        using_metrics={
            "dropped": function_metric(copier, "AsyncEventsDropped", period=FIVE_MINUTES),
            "refused": counted_metric(copier, "AuditLinesRefused", period=FIVE_MINUTES),
        },
        period=FIVE_MINUTES,
    )
    not_sent = cloudwatch.MathExpression(
        expression=f"""SELECT SUM(DeliveryErrors) FROM "AWS/Logs" WHERE FilterName = '{FILTER_NAME}'""",
        using_metrics={},
        period=FIVE_MINUTES,
    )
    return [
        Alarm(
            "headrace-ticks-stopped",
            "No tick was worked on for five minutes: watermarks, retention, leases and transactions stand still",
            function_metric(TICKS, "Invocations", period=FIVE_MINUTES),
            1,
            severity="page",
            is_below=True,
            is_silence_bad=True,
        ),
        Alarm(
            "headrace-metadata-throttles",
            "DynamoDB throttles the metadata table: its maximum throughput, or one hot stream",
            throttles,
            TABLE_THROTTLES_MAX,
        ),
        # A line that is not copied is in the log of its function for a month.
        Alarm("headrace-audit-lines-lost", "Audit lines were not copied into their log group", lines_lost),
        Alarm("headrace-audit-lines-not-sent", "The logs of API functions cannot send their audit lines", not_sent),
    ]


def _security_alarms(settings: Settings) -> list[Alarm]:
    alarms, rotation, issuer = list[Alarm](), topology.TOKEN_KEY_ROTATION, topology.CERTIFICATES
    if settings.tokens:
        errors = function_metric(rotation, "Errors", period=FIVE_MINUTES)
        alarms.append(
            Alarm(f"headrace-{rotation.name}-errors", "The keys for delegation tokens are not rotated", errors)
        )
    if not settings.has_certificates:
        return alarms
    return [
        *alarms,
        # A certificate has ten days left when the first run for it fails.
        Alarm(
            f"headrace-{issuer.name}-errors",
            "Certificates are not issued, and end within ten days",
            function_metric(issuer, "Errors", period=FIVE_MINUTES),
        ),
        Alarm(
            f"headrace-{issuer.name}-stopped",
            "The function that issues certificates was not called for a day",
            function_metric(issuer, "Invocations", period=ONE_DAY),
            1,
            is_below=True,
            is_silence_bad=True,
        ),
        Alarm(
            "headrace-authority-ends-soon",
            "The certification authority ends within a year",
            counted_metric(issuer, "AuthorityEndsSoon", period=ONE_DAY),
        ),
    ]


def _bridge_running(name: str, service: str, meaning: str) -> Alarm:
    tasks = bridge_metric("RunningTaskCount", "Minimum", namespace="ECS/ContainerInsights", service=service)
    return Alarm(name, meaning, tasks, GRPC_BRIDGE.tasks, periods=10, is_below=True, is_silence_bad=True)


def _bridge_alarms() -> Sequence[Alarm]:
    return [
        _bridge_running(
            "headrace-grpc-bridge-running", BRIDGE_SERVICE_NAME, "Fewer tasks of the gRPC bridge run than should"
        ),
        Alarm(
            "headrace-grpc-bridge-memory",
            "The gRPC bridge is about to run out of memory",
            bridge_metric("MemoryUtilization", "Maximum"),
            MEMORY_USED_PERCENT_MAX,
            periods=5,
        ),
    ]


def _external_alarms(*, has_bridge: bool) -> Sequence[Alarm]:
    keeper = topology.EXTERNAL_TARGETS
    alarms = [
        Alarm(
            "headrace-external-stores-unreachable",
            "Clients outside the network do not reach all segment stores",
            counted_metric(keeper, "ExternalStoresUnreachable", "Minimum"),
            periods=EXTERNAL_PERIODS,
            severity="page",
        ),
        Alarm(
            f"headrace-{keeper.name}-errors",
            "The load balancer for clients outside does not follow the segment stores",
            function_metric(keeper, "Errors", period=FIVE_MINUTES),
            FUNCTION_ERRORS_MAX,
        ),
    ]
    if has_bridge:
        outside = "Fewer tasks of the bridge for clients outside run than should"
        alarms.append(_bridge_running("headrace-grpc-bridge-external-running", OUTSIDE_SERVICE_NAME, outside))
    return alarms
