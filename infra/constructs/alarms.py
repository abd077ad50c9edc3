"""An alarm as data, and the resources that it becomes. `declared_alarms` and `log_alarms` have the alarms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

TOPIC_NAME = "headrace-alarms"
"""The topic of the deployment, whose name every stack knows."""
RUNBOOKS = "docs/operating/runbooks.md"
PAGE = "headrace-page"
"""The composite alarm that is raised while any alarm that wakes a person is."""
PAGE_BEFORE_API = "headrace-page-stores"
"""Of those that exist before the API does. A composite alarm changes in the stack of the alarms that settings add and
remove: CloudWatch deletes no alarm of which another one depends."""

Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Raised when a metric has been above a threshold in so many periods.

    `is_below`: below it. `datapoints`: of the periods, how many; all of them if None. `is_silence_bad`: a period
    without data counts as one. `anchor` is the section of its runbook; None: the one with its name. An alarm that is
    not `is_reported` is only a part of a composite alarm.
    """

    name: str
    meaning: str
    metric: cloudwatch.IMetric
    threshold: float = 0
    periods: int = 1
    severity: Severity = "ticket"
    anchor: str | None = None
    is_below: bool = False
    is_silence_bad: bool = False
    datapoints: int | None = None
    is_reported: bool = True

    @property
    def description(self) -> str:
        return described(self.meaning, self.anchor or self.name)


def described(meaning: str, anchor: str) -> str:
    """The description of an alarm, which ends with its runbook."""
    return f"{meaning}: {RUNBOOKS}#{anchor}"


def topic_seen_from(scope: Construct) -> sns.ITopic:
    """The topic, which the stack of observability makes."""
    stack = cdk.Stack.of(scope)
    arn = stack.format_arn(service="sns", resource=TOPIC_NAME, arn_format=cdk.ArnFormat.NO_RESOURCE_NAME)
    return sns.Topic.from_topic_arn(scope, "AlarmTopic", arn)


def alarms_seen_from(scope: Construct, prefix: str, names: Iterable[str]) -> list[cloudwatch.IAlarm]:
    """Alarms of any stack, by their names. `prefix` tells uses within a stack apart."""
    arn = cdk.Stack.of(scope).format_arn(
        service="cloudwatch", resource="alarm", resource_name="*", arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME
    )
    return [cloudwatch.Alarm.from_alarm_arn(scope, f"{prefix}-{name}", arn.replace("*", name)) for name in names]


def add_alarms(scope: Construct, topic: sns.ITopic, declared: Iterable[Alarm]) -> list[cloudwatch.Alarm]:
    """Create alarms with fixed names, in their order."""
    return [_add_alarm(scope, topic, each) for each in declared]


def _add_alarm(scope: Construct, topic: sns.ITopic, declared: Alarm) -> cloudwatch.Alarm:
    comparisons, missing = cloudwatch.ComparisonOperator, cloudwatch.TreatMissingData
    alarm = cloudwatch.Alarm(
        scope,
        declared.name,
        alarm_name=declared.name,
        alarm_description=declared.description,
        metric=declared.metric,
        threshold=declared.threshold,
        comparison_operator=(
            comparisons.LESS_THAN_THRESHOLD if declared.is_below else comparisons.GREATER_THAN_THRESHOLD
        ),
        evaluation_periods=declared.periods,
        datapoints_to_alarm=declared.datapoints,
        treat_missing_data=missing.BREACHING if declared.is_silence_bad else missing.NOT_BREACHING,
    )
    if declared.is_reported:
        alarm.add_alarm_action(actions.SnsAction(topic))
    return alarm


def add_composite(
    scope: Construct, name: str, meaning: str, rule: cloudwatch.IAlarmRule, topic: sns.ITopic | None = None
) -> cloudwatch.CompositeAlarm:
    """Create an alarm on the states of other alarms; without a topic it is only a part of another one."""
    alarm = cloudwatch.CompositeAlarm(
        scope, name, composite_alarm_name=name, alarm_description=described(meaning, name), alarm_rule=rule
    )
    if topic is not None:
        alarm.add_alarm_action(actions.SnsAction(topic))
    return alarm
