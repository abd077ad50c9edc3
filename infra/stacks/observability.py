"""The observability stack: alarms for operators, and the mails that are not alarms.

Every alarm requires an action, which docs/operating/runbooks.md describes. The stack is deployed before what it
watches, so that a deployment that fails is watched, too. The alarms on the API are in the stack of the API, whose id
AWS chooses.
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

from infra.constructs.alarms import PAGE_BEFORE_API, TOPIC_NAME, add_alarms, add_composite
from infra.constructs.burn_rates import acks_burn_rates, add_burn_rate
from infra.constructs.declared_alarms import declared_alarms
from infra.constructs.deployed_resources import CLUSTER_NAME
from infra.constructs.spark_job import FLIGHT_DELAYS, OTHER_JOBS
from infra.settings import Settings

FAILED_JOB_STATES = ["ERROR", "FAILED", "TIMEOUT"]


class ObservabilityStack(cdk.Stack):
    """Alarms to one topic."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: alarms", **kwargs)
        self.topic = sns.Topic(self, "Alarms", topic_name=TOPIC_NAME, enforce_ssl=True)
        self._let_alarms_publish()
        if settings.alarm_email:
            self.topic.add_subscription(subscriptions.EmailSubscription(settings.alarm_email))
        self._add_alarms(settings)
        self._tell_of_retirements()
        self._tell_of_failed_deployments()
        if settings.spark_job:
            self._watch_spark_jobs(settings.spark_jobs)
        cdk.CfnOutput(self, "AlarmTopicArn", value=self.topic.topic_arn)

    def _add_alarms(self, settings: Settings) -> None:
        declared = declared_alarms(settings)
        alarms: list[tuple[str, cloudwatch.IAlarm]] = [
            (each.severity, made) for each, made in zip(declared, add_alarms(self, self.topic, declared), strict=True)
        ]
        for burn_rate in acks_burn_rates(settings.zone_count):
            alarms.append((burn_rate.severity, add_burn_rate(self, self.topic, burn_rate)))
        add_composite(
            self,
            PAGE_BEFORE_API,
            "An alarm that wakes a person is raised, of stores or background work",
            cloudwatch.AlarmRule.any_of(*(alarm for severity, alarm in alarms if severity == "page")),
        )

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

    def _tell_of_failed_deployments(self) -> None:
        """ECS rolls a service back to the version before when tasks of the new one do not stay up."""
        self._tell_of_events(
            "DeploymentRolledBack",
            "headrace-deployment-rolled-back",
            "Tells the alarm topic that ECS has rolled back a service of stores or of the bridge",
            events.EventPattern(
                source=["aws.ecs"],
                detail_type=["ECS Deployment State Change"],
                detail={"eventName": ["SERVICE_DEPLOYMENT_FAILED"]},
                resources=events.Match.prefix(
                    self.format_arn(service="ecs", resource="service", resource_name=f"{CLUSTER_NAME}/")
                ),
            ),
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
