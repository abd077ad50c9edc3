"""The observability stack: alarms for operators.

Every alarm requires an action, which docs/operating/deploy.md describes. Missing data raises no alarm, except for
stores and ticks: one that reports nothing is not running. The stack is deployed before what it watches, so that a
deployment that fails is watched, too. The alarm on the API is in the stack of the API, whose id AWS chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from headrace import topology
from headrace.topology.grpc_bridge import GRPC_BRIDGE
from infra.constructs.alarms import TOPIC_NAME, add_alarm
from infra.constructs.audit_subscriptions import FILTER_NAME
from infra.constructs.deployed_resources import OUTSIDE_SERVICE_NAME
from infra.constructs.named_metrics import (
    PERIOD,
    bridge_metric,
    counted_by_any,
    counted_metric,
    function_metric,
    line_metric,
    queue_metric,
    store_insight,
    store_metric,
    table_metric,
)
from infra.constructs.replication_alarms import REPLICATION_ALARMS, LogAlarm, log_alarms
from infra.constructs.spark_job import FLIGHT_DELAYS, OTHER_JOBS
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
FAILED_JOB_STATES = ["ERROR", "FAILED", "TIMEOUT"]
TICKS = topology.function("ticks")
CLUSTER_WATCHERS = (TICKS, topology.function("store-tasks"))
"""The functions that check the segment stores and count the results."""


class ObservabilityStack(cdk.Stack):
    """Alarms to one topic."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: alarms", **kwargs)
        self.topic = sns.Topic(self, "Alarms", topic_name=TOPIC_NAME, enforce_ssl=True)
        self._let_alarms_publish()
        if settings.alarm_email:
            self.topic.add_subscription(subscriptions.EmailSubscription(settings.alarm_email))
        for queue in topology.QUEUES:
            self._watch_queue(queue)
        for function in topology.FUNCTIONS:
            self._watch_function(function)
        for index in range(settings.zone_count):
            self._watch_store(index, settings.stores_per_zone)
        self._watch_cluster(settings)
        self._tell_of_retirements()
        if settings.is_replicated:
            self._watch_replication()
        for watched in log_alarms(replicated=settings.is_replicated):
            self._watch_lines(watched)
        self._watch_ticks()
        self._watch_table()
        self._watch_audit_log()
        if settings.tokens:
            self._watch_token_keys()
        if settings.has_certificates:
            self._watch_certificates()
        if settings.grpc_bridge:
            self._watch_bridge()
        if settings.external_domain is not None:
            self._watch_external_access(has_bridge=settings.grpc_bridge)
        if settings.spark_job:
            self._watch_spark_jobs(settings.spark_jobs)
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
        add_alarm(
            self,
            self.topic,
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
        add_alarm(
            self,
            self.topic,
            f"{name}-age",
            "Background work waits and is not done",
            queue_metric(queue, "ApproximateAgeOfOldestMessage", "Maximum"),
            threshold=OLDEST_MESSAGE_AGE_S_MAX,
            periods=3,
        )

    def _watch_function(self, function: topology.Function) -> None:
        add_alarm(
            self,
            self.topic,
            f"headrace-{function.name}-errors",
            "The function fails again and again: see its log group",
            function_metric(function, "Errors", period=FIVE_MINUTES),
            threshold=FUNCTION_ERRORS_MAX,
        )
        add_alarm(
            self,
            self.topic,
            f"headrace-{function.name}-throttles",
            "Lambda refuses to start the function: the account or its reservation has no execution left",
            function_metric(function, "Throttles", period=FIVE_MINUTES),
            threshold=0,
            periods=THROTTLED_PERIODS,
        )

    def _watch_store(self, index: int, stores: int) -> None:
        store = f"headrace-store-{index}"
        add_alarm(
            self,
            self.topic,
            f"{store}-running",
            "A segment store of this zone does not run: its segments wait for another one to take them over",
            store_insight(index, "RunningTaskCount", "Minimum"),
            threshold=stores,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            periods=5,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )
        add_alarm(
            self,
            self.topic,
            f"{store}-volume",
            "The journal volume fills: data does not reach S3",
            store_metric(index, "EBSFilesystemUtilization", "Maximum"),
            threshold=VOLUME_USED_PERCENT_MAX,
            periods=3,
        )
        add_alarm(
            self,
            self.topic,
            f"{store}-memory",
            "The segment store is about to run out of memory",
            store_metric(index, "MemoryUtilization", "Maximum"),
            threshold=MEMORY_USED_PERCENT_MAX,
            periods=5,
        )

    def _watch_cluster(self, settings: Settings) -> None:
        add_alarm(
            self,
            self.topic,
            "headrace-stores-lost",
            "A segment store has lost its lease and is not back: see docs/operating/cluster.md",
            # The tick counts them six times a minute while they are lost; an event counts them once.
            counted_metric(TICKS, "StoresLost", "Minimum"),
            threshold=0,
            periods=3,
        )
        if settings.is_replicated:
            return  # a log that replicas have is never discarded
        add_alarm(
            self,
            self.topic,
            "headrace-containers-given-up",
            "Containers went on without what only their lost store had: acknowledged events may be missing",
            counted_by_any(CLUSTER_WATCHERS, "ContainersGivenUp"),
            threshold=0,
        )

    def _watch_replication(self) -> None:
        """Counts of the tick, six times a minute while something is wrong: the minimum says that it lasted."""
        for watched in REPLICATION_ALARMS:
            add_alarm(
                self,
                self.topic,
                watched.name,
                watched.description,
                counted_metric(watched.function, watched.metric, watched.statistic),
                threshold=0,
                periods=watched.minutes,
            )
        gate = topology.REPLICATION_GATE
        add_alarm(
            self,
            self.topic,
            f"headrace-{gate.name}-errors",
            "The function behind the gates of a deployment fails: CloudFormation waits up to 15 minutes for its report",
            function_metric(gate, "Errors", period=FIVE_MINUTES),
            threshold=0,
        )

    def _watch_lines(self, watched: LogAlarm) -> None:
        """An alarm on the lines of an event, which the stack with the log of the stores counts."""
        add_alarm(
            self,
            self.topic,
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
        add_alarm(
            self,
            self.topic,
            "headrace-ticks-stopped",
            "No tick was worked on for five minutes: watermarks, retention, leases and transactions stand still",
            function_metric(TICKS, "Invocations", period=FIVE_MINUTES),
            threshold=1,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )

    def _watch_table(self) -> None:
        add_alarm(
            self,
            self.topic,
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

    def _watch_audit_log(self) -> None:
        """A line that is not copied is in the log of its function for a month."""
        copier = topology.function(topology.AUDIT_LOG_FUNCTION)
        add_alarm(
            self,
            self.topic,
            "headrace-audit-lines-lost",
            "Audit lines were not copied into their log group: see docs/operating/security.md",
            cloudwatch.MathExpression(
                expression="FILL(dropped, 0) + FILL(refused, 0)",
                using_metrics={
                    "dropped": function_metric(copier, "AsyncEventsDropped", period=FIVE_MINUTES),
                    "refused": counted_metric(copier, "AuditLinesRefused", period=FIVE_MINUTES),
                },
                period=FIVE_MINUTES,
            ),
            threshold=0,
        )
        add_alarm(
            self,
            self.topic,
            "headrace-audit-lines-not-sent",
            "The logs of API functions cannot send their audit lines: see docs/operating/security.md",
            cloudwatch.MathExpression(
                expression=f"""SELECT SUM(DeliveryErrors) FROM "AWS/Logs" WHERE FilterName = '{FILTER_NAME}'""",
                using_metrics={},
                period=FIVE_MINUTES,
            ),
            threshold=0,
        )

    def _watch_token_keys(self) -> None:
        rotation = topology.TOKEN_KEY_ROTATION
        add_alarm(
            self,
            self.topic,
            f"headrace-{rotation.name}-errors",
            "The keys for delegation tokens are not rotated: see docs/operating/token-keys.md",
            function_metric(rotation, "Errors", period=FIVE_MINUTES),
            threshold=0,
        )

    def _watch_certificates(self) -> None:
        """A certificate has ten days left when the first run for it fails."""
        issuer = topology.CERTIFICATES
        add_alarm(
            self,
            self.topic,
            f"headrace-{issuer.name}-errors",
            "Certificates are not issued, and end within ten days: see docs/operating/certificates.md",
            function_metric(issuer, "Errors", period=FIVE_MINUTES),
            threshold=0,
        )
        add_alarm(
            self,
            self.topic,
            f"headrace-{issuer.name}-stopped",
            "The function that issues certificates was not called for a day: see docs/operating/certificates.md",
            function_metric(issuer, "Invocations", period=ONE_DAY),
            threshold=1,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )
        add_alarm(
            self,
            self.topic,
            "headrace-authority-ends-soon",
            "The certification authority ends within a year: declare another one, see docs/operating/certificates.md",
            counted_metric(issuer, "AuthorityEndsSoon", period=ONE_DAY),
            threshold=0,
        )

    def _watch_bridge(self) -> None:
        add_alarm(
            self,
            self.topic,
            "headrace-grpc-bridge-running",
            "Fewer tasks of the gRPC bridge run than should: see docs/operating/deploy.md",
            bridge_metric("RunningTaskCount", "Minimum", namespace="ECS/ContainerInsights"),
            threshold=GRPC_BRIDGE.tasks,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            periods=10,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )
        add_alarm(
            self,
            self.topic,
            "headrace-grpc-bridge-memory",
            "The gRPC bridge is about to run out of memory: see docs/operating/deploy.md",
            bridge_metric("MemoryUtilization", "Maximum"),
            threshold=MEMORY_USED_PERCENT_MAX,
            periods=5,
        )

    def _watch_external_access(self, *, has_bridge: bool) -> None:
        keeper = topology.EXTERNAL_TARGETS
        add_alarm(
            self,
            self.topic,
            "headrace-external-stores-unreachable",
            "Clients outside the network do not reach all segment stores: see docs/operating/security.md",
            counted_metric(keeper, "ExternalStoresUnreachable", "Minimum"),
            threshold=0,
            periods=EXTERNAL_PERIODS,
        )
        add_alarm(
            self,
            self.topic,
            f"headrace-{keeper.name}-errors",
            "The load balancer for clients outside does not follow the segment stores: see docs/operating/security.md",
            function_metric(keeper, "Errors", period=FIVE_MINUTES),
            threshold=FUNCTION_ERRORS_MAX,
        )
        if has_bridge:
            add_alarm(
                self,
                self.topic,
                "headrace-grpc-bridge-external-running",
                "Fewer tasks of the bridge for clients outside run than should: see docs/operating/deploy.md",
                bridge_metric(
                    "RunningTaskCount", "Minimum", namespace="ECS/ContainerInsights", service=OUTSIDE_SERVICE_NAME
                ),
                threshold=GRPC_BRIDGE.tasks,
                comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
                periods=10,
                missing=cloudwatch.TreatMissingData.BREACHING,
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
