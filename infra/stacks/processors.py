"""The processors stack: functions that process queues, and the schedules of ticks.

Only failed messages of a batch return to the queue (ReportBatchItemFailures), so that a failure of one stream does not
delay the others. Queues use a plain event source mapping and not the CDK's event source, which would add permissions to
the role of the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from headrace import topology
from infra.constructs import audit_subscriptions
from infra.constructs.controller_function import AsynchronousLimits, ControllerFunction
from infra.constructs.deployed_resources import DeployedResources
from infra.constructs.least_privilege import queue_worker_statement
from infra.constructs.store_network import StoreNetwork
from infra.packaging.lambda_bundle import lambda_code
from infra.settings import Settings

SCHEDULED = AsynchronousLimits(cdk.Duration.minutes(1), retries=0)
"""A tick that is a minute late is useless: the next minute's ticks do its work. Lambda's minimum is a minute."""

EVENTS = AsynchronousLimits(cdk.Duration.minutes(5), retries=2)
"""If an event is lost, a tick finds the same change later. Two retries are Lambda's maximum."""

AUDIT_LINES = AsynchronousLimits(cdk.Duration.hours(6), retries=2)
"""Both are Lambda's maxima. The hours are for calls that it cannot start; of one that fails, lines wait for minutes."""

_EVENT_BRIDGE_RETRIES = 3
"""Retries of EventBridge if it cannot deliver an event to Lambda, before the function gets it."""


class ProcessorsStack(cdk.Stack):
    """Every function of the topology that no route calls; `functions` by name."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, network: StoreNetwork, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: background work of the control plane", **kwargs)
        self._resources = DeployedResources.seen_from(self)
        code = lambda_code()
        fed_queues = [fed for queue in topology.QUEUES for fed in (queue, queue.dead_letters)]
        self._settings = settings
        routed = {route.function for route in topology.ROUTES}
        self.functions = {
            declared.name: ControllerFunction(
                self,
                declared,
                code=code,
                network=network,
                settings=settings,
                asynchronous=_asynchronous(declared),
                more_statements=self._queue_statements(declared, fed_queues),
            )
            for declared in topology.FUNCTIONS
            if declared.name not in routed
        }
        audit_subscriptions.permit(
            self.functions[topology.AUDIT_LOG_FUNCTION].function, has_bridge=settings.grpc_bridge
        )
        for queue in fed_queues:
            self._feed(queue)
        for schedule in topology.SCHEDULES:
            self._start(schedule)
        for rule in topology.EVENT_RULES:
            self._listen(rule)

    def _queue_statements(
        self, declared: topology.Function, fed_queues: Sequence[topology.Queue]
    ) -> list[iam.PolicyStatement]:
        arns = [self._resources.queue_arn(queue) for queue in fed_queues if queue.function == declared.name]
        return [queue_worker_statement(arns)] if arns else []

    def _feed(self, queue: topology.Queue) -> None:
        lambda_.EventSourceMapping(
            self,
            f"Feed-{queue.name.replace('.', '-')}",
            target=self.functions[queue.function].function,
            event_source_arn=self._resources.queue_arn(queue),
            batch_size=queue.batch_size,
            max_concurrency=self._settings.queue_concurrency(queue),
            report_batch_item_failures=True,
        )

    def _start(self, schedule: topology.Schedule) -> None:
        events.Rule(
            self,
            f"Schedule-{schedule.name}",
            rule_name=f"headrace-{schedule.name}",
            description=f"Calls {schedule.function} every {schedule.every_minutes} min",
            schedule=events.Schedule.rate(cdk.Duration.minutes(schedule.every_minutes)),
            targets=[
                targets.LambdaFunction(
                    self.functions[schedule.function].function,
                    event=events.RuleTargetInput.from_object(schedule.event),
                    max_event_age=SCHEDULED.event_age_max,
                    retry_attempts=SCHEDULED.retries,
                )
            ],
        )

    def _listen(self, rule: topology.EventRule) -> None:
        events.Rule(
            self,
            f"Events-{rule.name}",
            rule_name=f"headrace-{rule.name}",
            description=f"Calls {rule.function} for events of {rule.source}: {rule.detail_type}",
            event_pattern=events.EventPattern(source=[rule.source], detail_type=[rule.detail_type], detail=rule.detail),
            targets=[
                targets.LambdaFunction(
                    self.functions[rule.function].function,
                    max_event_age=EVENTS.event_age_max,
                    retry_attempts=_EVENT_BRIDGE_RETRIES,
                )
            ],
        )


def _asynchronous(declared: topology.Function) -> AsynchronousLimits | None:
    """Limits of a function that EventBridge or a subscription starts; those of queues are not called asynchronously."""
    if declared.name == topology.AUDIT_LOG_FUNCTION:
        return AUDIT_LINES
    if any(schedule.function == declared.name for schedule in topology.SCHEDULES):
        return SCHEDULED
    if any(rule.function == declared.name for rule in topology.EVENT_RULES):
        return EVENTS
    return None
