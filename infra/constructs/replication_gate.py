"""The gate between the services of two zones: a custom resource that is done when all logs have their copies.

ECS replaces the tasks of one service at a time, but knows nothing of the other zones. Without a gate an update would
begin with the next zone when the new store of this one is healthy, although a log may still have two copies.

CloudFormation calls the gate's function when the task definition of the zone before it has changed. The function
reports to CloudFormation itself. It has no provider framework: that would be three functions and a state machine more.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from headrace.topology import REPLICATION_GATE
from infra.constructs.deployed_resources import DeployedResources
from infra.constructs.segment_store_zone import SegmentStoreZone

GATE_TIMEOUT = cdk.Duration.hours(1)
"""CloudFormation's own limit. The function reports a failure a little earlier, and then says what it waited for."""


class ReplicationGate(Construct):
    """The gate behind the stores of `before`, in a deployment of so many zones."""

    def __init__(
        self, scope: Construct, id_: str, function: lambda_.IFunction, before: SegmentStoreZone, *, zones: int
    ) -> None:
        super().__init__(scope, id_)
        cdk.CustomResource(
            self,
            "Gate",
            service_token=function.function_arn,
            resource_type="Custom::HeadraceReplicationGate",
            service_timeout=GATE_TIMEOUT,
            properties={"TaskDefinition": before.task.task_definition_arn, "Zones": str(zones)},
        )


def restart_statement(scope: Construct) -> iam.PolicyStatement:
    """The function starts itself again, because a gate may take longer than one call of a function."""
    arn = DeployedResources.seen_from(scope).function_arn(REPLICATION_GATE)
    return iam.PolicyStatement(sid="StartAgain", actions=["lambda:InvokeFunction"], resources=[arn])
