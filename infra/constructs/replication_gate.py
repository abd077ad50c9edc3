"""The gate between the services of two zones: custom resources that are done when all logs have their copies.

ECS replaces the tasks of one service at a time, but knows nothing of the other zones. Without a gate an update would
begin with the next zone when the new store of this one is healthy, although a log may still have two copies.

CloudFormation calls the gate's function when the task definition of the zone before it has changed. The function
reports to CloudFormation itself. It has no provider framework: that would be three functions and a state machine more.
If the function cannot start, CloudFormation waits for the time-out of a resource, and again when it rolls back. So the
first resource of a gate has a short one, and the wait is divided among several.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.constructs.segment_store_zone import SegmentStoreZone

STEP_TIMEOUT_S = 180
"""Of the resource that refuses a step. It does not wait."""
WAITS_S = (60, *4 * (780,))
"""What each resource of a gate waits for the logs: 53 minutes together."""
REPORT_MARGIN_S = 120
"""For the start of the function and its report."""


def tls_step(scope: Construct, function: lambda_.IFunction, tls: str) -> cdk.CustomResource:
    """A resource for the first zone to wait for: it refuses an update that would skip a step of turning TLS off."""
    return cdk.CustomResource(
        scope,
        "TlsStep",
        service_token=function.function_arn,
        resource_type="Custom::HeadraceTlsStep",
        service_timeout=cdk.Duration.seconds(STEP_TIMEOUT_S),
        # CloudFormation calls the function when it changes, with the value of before.
        properties={"Tls": tls},
    )


class ReplicationGate(Construct):
    """The gate behind the stores of `before`, in a deployment of so many zones; `last` is its last resource."""

    def __init__(
        self, scope: Construct, id_: str, function: lambda_.IFunction, before: SegmentStoreZone, *, zones: int
    ) -> None:
        super().__init__(scope, id_)
        previous: Construct = before.service
        for number, wait_s in enumerate(WAITS_S, start=1):
            is_last = number == len(WAITS_S)
            resource = cdk.CustomResource(
                self,
                # The id of the one resource that a gate had before.
                "Gate" if is_last else f"Gate{number}",
                service_token=function.function_arn,
                resource_type="Custom::HeadraceReplicationGate",
                service_timeout=cdk.Duration.seconds(wait_s + REPORT_MARGIN_S),
                properties={
                    "TaskDefinition": before.task.task_definition_arn,
                    "Zones": str(zones),
                    "WaitSeconds": str(wait_s),
                    "Last": "true" if is_last else "false",
                },
            )
            resource.node.add_dependency(previous)
            previous = resource
        self.last = previous
