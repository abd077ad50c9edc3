"""Alarms to the topic of the deployment, whose name every stack knows."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

TOPIC_NAME = "headrace-alarms"


def topic_seen_from(scope: Construct) -> sns.ITopic:
    """The topic, which the stack of observability makes."""
    stack = cdk.Stack.of(scope)
    arn = stack.format_arn(service="sns", resource=TOPIC_NAME, arn_format=cdk.ArnFormat.NO_RESOURCE_NAME)
    return sns.Topic.from_topic_arn(scope, "AlarmTopic", arn)


def add_alarm(
    scope: Construct,
    topic: sns.ITopic,
    name: str,
    description: str,
    metric: cloudwatch.IMetric,
    *,
    threshold: float,
    comparison: cloudwatch.ComparisonOperator = cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
    periods: int = 1,
    missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING,
) -> None:
    """An alarm with a fixed name."""
    alarm = cloudwatch.Alarm(
        scope,
        name,
        alarm_name=name,
        alarm_description=description,
        metric=metric,
        threshold=threshold,
        comparison_operator=comparison,
        evaluation_periods=periods,
        treat_missing_data=missing,
    )
    alarm.add_alarm_action(actions.SnsAction(topic))
