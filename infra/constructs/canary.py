"""The canary: a function that writes an event to each container once a minute, and reads it again.

It is deployed with the stores, after them. Alarms on its metrics are in the stack of alarms.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from constructs import Construct

from headrace import topology
from infra.constructs.controller_function import AsynchronousLimits, ControllerFunction
from infra.constructs.deployed_resources import DeployedResources, function_name
from infra.constructs.least_privilege import canary_statement
from infra.constructs.store_network import StoreNetwork
from infra.packaging import lambda_bundle
from infra.settings import Settings

EACH_MINUTE = AsynchronousLimits(cdk.Duration.minutes(1), retries=0)
"""The next call is a minute later. Lambda's minimum is a minute."""


class Canary(Construct):
    """Function and schedule."""

    def __init__(self, scope: Construct, settings: Settings, network: StoreNetwork) -> None:
        super().__init__(scope, "Canary")
        called = ControllerFunction(
            self,
            topology.CANARY,
            code=lambda_bundle.lambda_code(lambda_bundle.CANARY),
            network=network,
            settings=settings,
            more_statements=[canary_statement(DeployedResources.seen_from(self))],
            # The handlers that it calls count requests of users.
            more_environment={"POWERTOOLS_METRICS_DISABLED": "true"},
            asynchronous=EACH_MINUTE,
        )
        events.Rule(
            self,
            "EachMinute",
            rule_name=function_name(topology.CANARY),
            description="Calls the canary once a minute",
            schedule=events.Schedule.rate(cdk.Duration.minutes(1)),
            targets=[
                targets.LambdaFunction(
                    called.function, max_event_age=EACH_MINUTE.event_age_max, retry_attempts=EACH_MINUTE.retries
                )
            ],
        )
