"""The observability stack: alarms for operators, and a dashboard.

Every alarm requires an action, which docs/operating/deploy.md describes. Missing data raises no alarm, except for
stores and ticks: one that reports nothing is not running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from headrace import topology
from headrace.topology import SEGMENT_STORES
from infra.constructs.deployed_resources import STORE_LOG_GROUP_NAME
from infra.constructs.named_metrics import (
    METRICS_NAMESPACE,
    PERIOD,
    api_metric,
    counted_by_any,
    counted_metric,
    function_metric,
    line_metric,
    queue_metric,
    store_insight,
    store_metric,
    table_metric,
)
from infra.constructs.replication_alarms import LOG_ALARMS, REPLICATION_ALARMS, LogAlarm
from infra.constructs.spark_job import FLIGHT_DELAYS, OTHER_JOBS
from infra.settings import Settings

FIVE_MINUTES = cdk.Duration.minutes(5)
OLDEST_MESSAGE_AGE_S_MAX = 300
"""A stream operation takes seconds. If a message waits for minutes, its queue is not processed."""
FUNCTION_ERRORS_MAX = 3
"""Per five minutes: a single failure is retried by queue or caller."""
THROTTLED_PERIODS = 2
"""Of five minutes each: a burst is throttled for seconds, an account without free executions for longer."""
TABLE_THROTTLES_MAX = 100
"""Per five minutes: clients retry single ones, and a partition that has become hot is split by DynamoDB meanwhile."""
API_FAULTS_MAX = 5
"""Per five minutes: responses 5xx, including those of throttled functions. Clients repeat calls, so few do no harm."""
VOLUME_USED_SHARE_MAX = 0.8
"""Of the declared size; Container Insights reports gigabytes."""
MEMORY_USED_PERCENT_MAX = 90
FAILED_JOB_STATES = ["ERROR", "FAILED", "TIMEOUT"]
TICKS = topology.function("ticks")
CLUSTER_WATCHERS = (TICKS, topology.function("store-tasks"))
"""The functions that check the segment stores and count the results."""


class ObservabilityStack(cdk.Stack):
    """Alarms to one topic, and a dashboard."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, *, api_id: str, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: alarms and dashboard", **kwargs)
        self.topic = sns.Topic(self, "Alarms", topic_name="headrace-alarms", enforce_ssl=True)
        self._let_alarms_publish()
        if settings.alarm_email:
            self.topic.add_subscription(subscriptions.EmailSubscription(settings.alarm_email))
        self._store_logs = logs.LogGroup.from_log_group_name(self, "StoreLogs", STORE_LOG_GROUP_NAME)
        for queue in topology.QUEUES:
            self._watch_queue(queue)
        for function in topology.FUNCTIONS:
            self._watch_function(function)
        for index in range(settings.zone_count):
            self._watch_store(index)
        self._watch_cluster(settings)
        self._tell_of_retirements()
        if settings.is_replicated:
            self._watch_replication()
        for watched in LOG_ALARMS:
            if settings.is_replicated or not watched.only_if_replicated:
                self._watch_lines(watched)
        self._watch_ticks()
        self._watch_table()
        self._watch_api(api_id)
        if settings.tokens:
            self._watch_token_keys()
        if settings.spark_job:
            self._watch_spark_jobs(settings.spark_jobs)
        self._dashboard(api_id, range(settings.zone_count))
        cdk.CfnOutput(self, "AlarmTopicArn", value=self.topic.topic_arn)

    def _let_alarms_publish(self) -> None:
        """A topic with a policy of its own lacks the default policy, which would let the account's alarms publish."""
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Alarms",
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[self.topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": self.account}},
            )
        )

    def _watch_queue(self, queue: topology.Queue) -> None:
        name = queue.name.removesuffix(".fifo")
        self._alarm(
            f"{name}-dead-letters",
            "Messages that could not be worked on: `headrace dead-letter list` says which and why",
            # A function removes messages within seconds unless it fails, so both waiting and received ones count.
            cloudwatch.MathExpression(
                expression="FILL(waiting, 0) + FILL(received, 0)",
                using_metrics={
                    "waiting": queue_metric(queue.dead_letters, "ApproximateNumberOfMessagesVisible", "Maximum"),
                    "received": queue_metric(queue.dead_letters, "NumberOfMessagesReceived", "Sum"),
                },
                period=PERIOD,
            ),
            threshold=0,
        )
        self._alarm(
            f"{name}-age",
            "Background work waits and is not done",
            queue_metric(queue, "ApproximateAgeOfOldestMessage", "Maximum"),
            threshold=OLDEST_MESSAGE_AGE_S_MAX,
            periods=3,
        )

    def _watch_function(self, function: topology.Function) -> None:
        self._alarm(
            f"headrace-{function.name}-errors",
            "The function fails again and again: see its log group",
            function_metric(function, "Errors", period=FIVE_MINUTES),
            threshold=FUNCTION_ERRORS_MAX,
        )
        self._alarm(
            f"headrace-{function.name}-throttles",
            "Lambda refuses to start the function: the account or its reservation has no execution left",
            function_metric(function, "Throttles", period=FIVE_MINUTES),
            threshold=0,
            periods=THROTTLED_PERIODS,
        )

    def _watch_store(self, index: int) -> None:
        store = f"headrace-store-{index}"
        self._alarm(
            f"{store}-running",
            "The segment store of this zone does not run: its segments cannot be written or read at the tail",
            store_insight(index, "RunningTaskCount", "Minimum"),
            threshold=1,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            periods=5,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )
        self._alarm(
            f"{store}-volume",
            "The journal volume fills: data does not reach S3",
            store_insight(index, "EBSFilesystemUtilized", "Maximum"),
            threshold=VOLUME_USED_SHARE_MAX * SEGMENT_STORES.volume_gib,
            periods=3,
        )
        self._alarm(
            f"{store}-memory",
            "The segment store is about to run out of memory",
            store_metric(index, "MemoryUtilization", "Maximum"),
            threshold=MEMORY_USED_PERCENT_MAX,
            periods=5,
        )

    def _watch_cluster(self, settings: Settings) -> None:
        self._alarm(
            "headrace-stores-lost",
            "A segment store has lost its lease and is not back: see docs/operating/cluster.md",
            # The tick counts them six times a minute while they are lost; an event counts them once.
            counted_metric(TICKS, "StoresLost", "Minimum"),
            threshold=0,
            periods=3,
        )
        if settings.is_replicated:
            return  # a log that replicas have is never discarded
        self._alarm(
            "headrace-containers-given-up",
            "Containers went on without what only their lost store had: acknowledged events may be missing",
            counted_by_any(CLUSTER_WATCHERS, "ContainersGivenUp"),
            threshold=0,
        )

    def _watch_replication(self) -> None:
        """Counts of the tick, six times a minute while something is wrong: the minimum says that it lasted."""
        for watched in REPLICATION_ALARMS:
            self._alarm(
                watched.name,
                watched.description,
                counted_metric(watched.function, watched.metric, watched.statistic),
                threshold=0,
                periods=watched.minutes,
            )
        gate = topology.REPLICATION_GATE
        self._alarm(
            f"headrace-{gate.name}-errors",
            "The function behind the gates of a deployment fails: CloudFormation waits up to an hour for its report",
            function_metric(gate, "Errors", period=FIVE_MINUTES),
            threshold=0,
        )

    def _watch_lines(self, watched: LogAlarm) -> None:
        """An alarm on the lines of an event in the log of the stores."""
        logs.MetricFilter(
            self,
            f"Lines-{watched.event}",
            log_group=self._store_logs,
            filter_pattern=logs.FilterPattern.literal(f'"event={watched.event} "'),
            metric_namespace=METRICS_NAMESPACE,
            metric_name=watched.metric,
        )
        self._alarm(
            watched.name,
            watched.description,
            line_metric(watched.metric),
            threshold=0,
            periods=watched.minutes,
        )

    def _tell_of_retirements(self) -> None:
        """AWS tells some days before it replaces the host of a task. Each store of the host then stops gracefully."""
        self._tell_of_events(
            "TaskRetirement",
            "headrace-task-retirement",
            "Tells the alarm topic that AWS is going to retire Fargate tasks",
            events.EventPattern(
                source=["aws.health"],
                detail_type=["AWS Health Event"],
                detail={"service": ["ECS"], "eventTypeCode": ["AWS_ECS_TASK_PATCHING_RETIREMENT"]},
            ),
        )

    def _watch_ticks(self) -> None:
        self._alarm(
            "headrace-ticks-stopped",
            "No tick was worked on for five minutes: watermarks, retention, leases and transactions stand still",
            function_metric(TICKS, "Invocations", period=FIVE_MINUTES),
            threshold=1,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )

    def _watch_table(self) -> None:
        self._alarm(
            "headrace-metadata-throttles",
            "DynamoDB throttles the metadata table: its maximum throughput, or one hot stream",
            cloudwatch.MathExpression(
                expression="FILL(reads, 0) + FILL(writes, 0)",
                using_metrics={
                    "reads": table_metric("ReadThrottleEvents", FIVE_MINUTES),
                    "writes": table_metric("WriteThrottleEvents", FIVE_MINUTES),
                },
                period=FIVE_MINUTES,
            ),
            threshold=TABLE_THROTTLES_MAX,
        )

    def _watch_api(self, api_id: str) -> None:
        self._alarm(
            "headrace-api-faults",
            "The HTTP API answers 5xx: see the log groups of the access log and of the functions",
            api_metric(api_id, "5xx", period=FIVE_MINUTES),
            threshold=API_FAULTS_MAX,
        )

    def _watch_token_keys(self) -> None:
        rotation = topology.TOKEN_KEY_ROTATION
        self._alarm(
            f"headrace-{rotation.name}-errors",
            "The keys for delegation tokens are not rotated: see docs/operating/token-keys.md",
            function_metric(rotation, "Errors", period=FIVE_MINUTES),
            threshold=0,
        )

    def _watch_spark_jobs(self, others: Sequence[str]) -> None:
        """Glue reports failed runs by an event and has no metric of them, so a rule on the event sends the alarm."""
        names = [FLIGHT_DELAYS.job_name, *(OTHER_JOBS[name].job_name for name in others)]
        self._tell_of_events(
            "SparkJobFailed",
            "headrace-spark-job-failed",
            "Tells the alarm topic of failed runs of the Spark jobs",
            events.EventPattern(
                source=["aws.glue"],
                detail_type=["Glue Job State Change"],
                detail={"jobName": names, "state": FAILED_JOB_STATES},
            ),
        )

    def _tell_of_events(self, id_: str, name: str, description: str, pattern: events.EventPattern) -> None:
        """Send events of AWS to the alarm topic."""
        events.Rule(
            self,
            id_,
            rule_name=name,
            description=description,
            event_pattern=pattern,
            targets=[targets.SnsTopic(self.topic)],
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

    def _dashboard(self, api_id: str, stores: Sequence[int]) -> None:
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name="headrace")
        dashboard.add_widgets(
            _graph("API calls and errors", [api_metric(api_id, name) for name in ("Count", "4xx", "5xx")]),
            _graph("API latency, ms", [api_metric(api_id, "Latency", percentile) for percentile in ("p50", "p99")]),
            _graph("Function errors", [function_metric(each, "Errors") for each in topology.FUNCTIONS]),
        )
        dashboard.add_widgets(
            _graph(
                "Function duration p99, ms", [function_metric(each, "Duration", "p99") for each in topology.FUNCTIONS]
            ),
            _graph(
                "Messages waiting",
                [queue_metric(each, "ApproximateNumberOfMessagesVisible", "Maximum") for each in topology.QUEUES],
            ),
            _graph(
                "Dead letters",
                [queue_metric(each.dead_letters, "NumberOfMessagesReceived", "Sum") for each in topology.QUEUES],
            ),
        )
        dashboard.add_widgets(
            _graph("Store CPU, %", [store_metric(index, "CPUUtilization", "Average") for index in stores]),
            _graph("Store memory, %", [store_metric(index, "MemoryUtilization", "Average") for index in stores]),
            _graph(
                "Journal volume used, GB",
                [store_insight(index, "EBSFilesystemUtilized", "Maximum") for index in stores],
            ),
        )


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8, height=6)
