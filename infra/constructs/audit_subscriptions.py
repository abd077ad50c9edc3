"""Audit lines on their way from the logs of API functions and the bridge to the function that copies them.

A subscription costs nothing, and calls the function with many lines at once. It delivers at least once.
"""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from headrace import topology
from infra.constructs.controller_function import ControllerFunction
from infra.constructs.deployed_resources import BRIDGE_LOG_GROUP_NAME, DeployedResources, log_group_name

FILTER_NAME = "headrace-audit"
AUDIT_LINES = "{ $.audit = 1 }"
"""The field is in no other line of a function."""


def subscribe(function: ControllerFunction) -> None:
    """Send the audit lines of a function to the one that copies them."""
    _subscribe(function, log_group_name(function.declared)).node.add_dependency(function.log_group)


def subscribe_bridge(log_group: logs.LogGroup) -> None:
    """Send the audit lines of the bridge to that function. The bridge writes other lines than JSON, too."""
    _subscribe(log_group, BRIDGE_LOG_GROUP_NAME).node.add_dependency(log_group)


def _subscribe(scope: Construct, log_group_name: str) -> logs.CfnSubscriptionFilter:
    resources = DeployedResources.seen_from(scope)
    return logs.CfnSubscriptionFilter(
        scope,
        "AuditLines",
        log_group_name=log_group_name,
        filter_name=FILTER_NAME,
        filter_pattern=AUDIT_LINES,
        destination_arn=resources.function_arn(topology.function(topology.AUDIT_LOG_FUNCTION)),
    )


def permit(copier: lambda_.Function, *, has_bridge: bool) -> None:
    """Let the logs of API functions and the bridge call it, and no other log group: a line in it is believed."""
    resources = DeployedResources.seen_from(copier)
    if has_bridge:
        copier.add_permission(
            "AuditLinesOfBridge",
            principal=iam.ServicePrincipal("logs.amazonaws.com"),
            source_account=resources.stack.account,
            source_arn=resources.log_streams_arn(BRIDGE_LOG_GROUP_NAME),
        )
    for name in sorted({route.function for route in topology.ROUTES}):
        copier.add_permission(
            f"AuditLinesOf-{name}",
            principal=iam.ServicePrincipal("logs.amazonaws.com"),
            source_account=resources.stack.account,
            source_arn=resources.log_streams_arn(log_group_name(topology.function(name))),
        )
