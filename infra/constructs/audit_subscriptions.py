"""Audit lines on their way from the logs of API functions to the function that copies them.

A subscription costs nothing, and calls the function with many lines at once. It delivers at least once.
"""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs

from headrace import topology
from infra.constructs.controller_function import ControllerFunction
from infra.constructs.deployed_resources import DeployedResources, log_group_name

FILTER_NAME = "headrace-audit"
AUDIT_LINES = "{ $.audit = 1 }"
"""The field is in no other line of a function."""


def subscribe(function: ControllerFunction) -> None:
    """Send the audit lines of a function to the one that copies them."""
    resources = DeployedResources.seen_from(function)
    subscription = logs.CfnSubscriptionFilter(
        function,
        "AuditLines",
        log_group_name=log_group_name(function.declared),
        filter_name=FILTER_NAME,
        filter_pattern=AUDIT_LINES,
        destination_arn=resources.function_arn(topology.function(topology.AUDIT_LOG_FUNCTION)),
    )
    subscription.node.add_dependency(function.log_group)


def permit(copier: lambda_.Function) -> None:
    """Let the logs of API functions call the function, and no other log group: a line in it is believed."""
    resources = DeployedResources.seen_from(copier)
    for name in sorted({route.function for route in topology.ROUTES}):
        copier.add_permission(
            f"AuditLinesOf-{name}",
            principal=iam.ServicePrincipal("logs.amazonaws.com"),
            source_account=resources.stack.account,
            source_arn=resources.log_streams_arn(log_group_name(topology.function(name))),
        )
