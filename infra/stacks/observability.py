"""The observability stack: what wakes an operator, and one dashboard to look at when it does.

Every alarm means that something must be done, and docs/operating/deploy.md says what. Missing data is quiet, except
for the stores: a store that reports nothing is not running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from headrace.topology import SEGMENT_STORES
from infra.constructs.controller_function import ControllerFunction
from infra.constructs.queue_with_dead_letters import QueueWithDeadLetters
from infra.constructs.segment_store_zone import SegmentStoreZone
from infra.settings import Settings

PERIOD = cdk.Duration.minutes(1)
METRICS_NAMESPACE = "Headrace"
"""What functions/observability.py counts under."""
OLDEST_MESSAGE_AGE_S_MAX = 300
"""A stream operation takes seconds; a message that waits for minutes means that nobody works on its queue."""
FUNCTION_ERRORS_MAX = 3
"""Per five minutes: a single failure is retried by queue or caller."""
VOLUME_USED_SHARE_MAX = 0.8
"""Of the declared size; Container Insights reports gigabytes."""
MEMORY_USED_PERCENT_MAX = 90


class ObservabilityStack(cdk.Stack):
    """Alarms to one topic, and a dashboard."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        settings: Settings,
        *,
        api: apigateway.HttpApi,
        functions: Mapping[str, ControllerFunction],
        queues: Sequence[QueueWithDeadLetters],
        zones: Sequence[SegmentStoreZone],
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, description="Headrace: alarms and dashboard", **kwargs)
        self.topic = sns.Topic(self, "Alarms", topic_name="headrace-alarms", enforce_ssl=True)
        if settings.alarm_email:
            self.topic.add_subscription(subscriptions.EmailSubscription(settings.alarm_email))
        for queue in queues:
            self._watch_queue(queue)
        for function in functions.values():
            self._watch_function(function)
        for zone in zones:
            self._watch_store(zone)
        self._watch_cluster()
        self._dashboard(api, functions, queues, zones)
        cdk.CfnOutput(self, "AlarmTopicArn", value=self.topic.topic_arn)

    def _watch_queue(self, queue: QueueWithDeadLetters) -> None:
        name = queue.declared.name.removesuffix(".fifo")
        self._alarm(
            f"{name}-dead-letters",
            "Messages that could not be worked on: `headrace dead-letter list` says which and why",
            # A function takes them from the queue within seconds, unless it fails itself: so both are counted.
            cloudwatch.MathExpression(
                expression="FILL(waiting, 0) + FILL(received, 0)",
                using_metrics={
                    "waiting": queue.dead_letters.metric_approximate_number_of_messages_visible(statistic="Maximum"),
                    "received": queue.dead_letters.metric_number_of_messages_received(statistic="Sum"),
                },
                period=PERIOD,
            ),
            threshold=0,
        )
        self._alarm(
            f"{name}-age",
            "Background work waits and is not done",
            queue.queue.metric_approximate_age_of_oldest_message(period=PERIOD, statistic="Maximum"),
            threshold=OLDEST_MESSAGE_AGE_S_MAX,
            periods=3,
        )

    def _watch_function(self, function: ControllerFunction) -> None:
        self._alarm(
            f"headrace-{function.declared.name}-errors",
            "The function fails again and again: see its log group",
            function.function.metric_errors(period=cdk.Duration.minutes(5), statistic="Sum"),
            threshold=FUNCTION_ERRORS_MAX,
        )

    def _watch_store(self, zone: SegmentStoreZone) -> None:
        running = _store_metric(zone, "RunningTaskCount", "Minimum")
        self._alarm(
            f"headrace-{zone.store_id}-running",
            "The segment store of this zone does not run: its segments cannot be written or read at the tail",
            running,
            threshold=1,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            periods=5,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )
        self._alarm(
            f"headrace-{zone.store_id}-volume",
            "The journal volume fills: data does not reach S3",
            _store_metric(zone, "EBSFilesystemUtilized", "Maximum"),
            threshold=VOLUME_USED_SHARE_MAX * SEGMENT_STORES.volume_gib,
            periods=3,
        )
        self._alarm(
            f"headrace-{zone.store_id}-memory",
            "The segment store is about to run out of memory",
            zone.service.metric_memory_utilization(period=PERIOD, statistic="Maximum"),
            threshold=MEMORY_USED_PERCENT_MAX,
            periods=5,
        )

    def _watch_cluster(self) -> None:
        self._alarm(
            "headrace-stores-lost",
            "A segment store has lost its lease and is not back: see docs/operating/cluster.md",
            cloudwatch.Metric(
                namespace=METRICS_NAMESPACE, metric_name="StoresLost", statistic="Minimum", period=PERIOD
            ),
            threshold=0,
            periods=3,
        )
        self._alarm(
            "headrace-containers-given-up",
            "Containers went on without what only their lost store had: acknowledged events may be missing",
            cloudwatch.Metric(
                namespace=METRICS_NAMESPACE, metric_name="ContainersGivenUp", statistic="Sum", period=PERIOD
            ),
            threshold=0,
        )

    def _alarm(
        self,
        name: str,
        description: str,
        metric: cloudwatch.IMetric,
        *,
        threshold: float,
        comparison: cloudwatch.ComparisonOperator = cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        periods: int = 1,
        missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING,
    ) -> None:
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=name,
            alarm_description=description,
            metric=metric,
            threshold=threshold,
            comparison_operator=comparison,
            evaluation_periods=periods,
            treat_missing_data=missing,
        )
        alarm.add_alarm_action(actions.SnsAction(self.topic))

    def _dashboard(
        self,
        api: apigateway.HttpApi,
        functions: Mapping[str, ControllerFunction],
        queues: Sequence[QueueWithDeadLetters],
        zones: Sequence[SegmentStoreZone],
    ) -> None:
        lambdas = [function.function for function in functions.values()]
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name="headrace")
        dashboard.add_widgets(
            _graph("API calls and errors", [api.metric_count(), api.metric_client_error(), api.metric_server_error()]),
            _graph("API latency, ms", [api.metric_latency(statistic="p50"), api.metric_latency(statistic="p99")]),
            _graph("Function errors", [each.metric_errors() for each in lambdas]),
        )
        dashboard.add_widgets(
            _graph("Function duration p99, ms", [each.metric_duration(statistic="p99") for each in lambdas]),
            _graph("Messages waiting", [q.queue.metric_approximate_number_of_messages_visible() for q in queues]),
            _graph(
                "Dead letters", [q.dead_letters.metric_number_of_messages_received(statistic="Sum") for q in queues]
            ),
        )
        dashboard.add_widgets(
            _graph("Store CPU, %", [zone.service.metric_cpu_utilization() for zone in zones]),
            _graph("Store memory, %", [zone.service.metric_memory_utilization() for zone in zones]),
            _graph("Journal volume used, GB", [_store_metric(z, "EBSFilesystemUtilized", "Maximum") for z in zones]),
        )


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8, height=6)


def _store_metric(zone: SegmentStoreZone, name: str, statistic: str) -> cloudwatch.Metric:
    """A metric of Container Insights about one service."""
    return cloudwatch.Metric(
        namespace="ECS/ContainerInsights",
        metric_name=name,
        dimensions_map={"ClusterName": zone.service.cluster.cluster_name, "ServiceName": zone.service.service_name},
        statistic=statistic,
        period=PERIOD,
    )
