"""Managed policies for callers of the HTTP API: attach one to a role instead of writing ARNs of routes.

They cover the control plane only. Any client in the client security group, which can open the wire port, can read and
write events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_iam as iam
from constructs import Construct

from headrace.topology import ROUTES
from headrace.topology.kinds import Access
from infra.constructs.acknowledgements import acknowledge_wildcard

READ_STREAMS_POLICY = "headrace-read-streams"
WRITE_STREAMS_POLICY = "headrace-write-streams"
MANAGE_STREAMS_POLICY = "headrace-manage-streams"
OPERATE_POLICY = "headrace-operate"

ALL_ROUTES = ("*/v1/*",)
MANAGED_ROUTES = (
    "*/v1/scopes",
    "*/v1/scopes/*",
    "*/v1/dead-letters",
    "*/v1/dead-letters/*",
    "GET/v1/cluster",
    "GET/v1/cluster/*",
)
"""All but the decisions about stores and their logs: one of them accepts a loss of data."""
_QUESTIONS = ("GET/v1/scopes", "GET/v1/scopes/*")
"""A pattern for all routes that `Route.least_access` declares as reading: a list would not fit into a policy."""

ROUTES_REASON = "Scopes, streams and segments are path parameters: the statement covers these routes of the one API."


def resources_of(*granted: Access) -> tuple[str, ...]:
    """The routes in a policy for these accesses: method and path, with a wildcard for each parameter."""
    others = [route for route in ROUTES if route.method != "GET" and route.least_access in granted]
    return (*_QUESTIONS, *(f"{route.method}{re.sub(r'{[^}]*}', '*', route.path)}" for route in others))


class CallerPolicies(Construct):
    """`read_streams` is for readers of events, `write_streams` for writers and for readers that publish
    their positions, `manage_streams` for callers that create, scale and delete streams. `operate` also allows decisions
    about stores and logs, such as to accept the loss of a log's copies."""

    def __init__(self, scope: Construct, id_: str, api: apigateway.HttpApi) -> None:
        super().__init__(scope, id_)
        self._api = api
        self.read_streams = self._policy(READ_STREAMS_POLICY, "Read events of any stream", resources_of(Access.READ))
        self.write_streams = self._policy(
            WRITE_STREAMS_POLICY, "Write and read events of any stream", resources_of(Access.READ, Access.WRITE)
        )
        self.manage_streams = self._policy(
            MANAGE_STREAMS_POLICY, "Create, change and delete any stream", MANAGED_ROUTES
        )
        self.operate = self._policy(OPERATE_POLICY, "Everything, also to accept that data is lost", ALL_ROUTES)

    def _policy(self, name: str, description: str, routes: Sequence[str]) -> iam.ManagedPolicy:
        stack = cdk.Stack.of(self)
        resources = [
            stack.format_arn(service="execute-api", resource=self._api.api_id, resource_name=f"$default/{route}")
            for route in routes
        ]
        policy = iam.ManagedPolicy(
            self,
            name,
            managed_policy_name=name,
            description=f"Headrace: {description}",
            statements=[iam.PolicyStatement(sid="Invoke", actions=["execute-api:Invoke"], resources=resources)],
        )
        for arn in resources:
            if "*" in arn:
                acknowledge_wildcard(policy, arn, ROUTES_REASON)
        return policy
