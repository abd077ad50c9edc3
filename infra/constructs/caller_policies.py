"""Managed policies for callers of the HTTP API: attach one to a role instead of writing ARNs of routes.

They cover the control plane only. Without delegation tokens any client in the client security group, which can open the
wire port, can read and write events.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_iam as iam
from constructs import Construct

from headrace.topology.caller_access import MANAGED_POLICIES, ManagedPolicy, patterns_of
from infra.constructs.acknowledgements import acknowledge_wildcard

ROUTES_REASON = "Scopes, streams and segments are path parameters: the statement covers these routes of the one API."


class CallerPolicies(Construct):
    """The policies that the topology derives from its table of routes; `policies` by name."""

    def __init__(self, scope: Construct, id_: str, api: apigateway.HttpApi) -> None:
        super().__init__(scope, id_)
        self._api = api
        self.policies = {declared.name: self._policy(declared) for declared in MANAGED_POLICIES}

    def _policy(self, declared: ManagedPolicy) -> iam.ManagedPolicy:
        stack = cdk.Stack.of(self)
        resources = [
            stack.format_arn(service="execute-api", resource=self._api.api_id, resource_name=f"$default/{pattern}")
            for pattern in patterns_of(declared.routes)
        ]
        policy = iam.ManagedPolicy(
            self,
            declared.name,
            managed_policy_name=declared.name,
            description=f"Headrace: {declared.description}",
            statements=[iam.PolicyStatement(sid="Invoke", actions=["execute-api:Invoke"], resources=resources)],
        )
        for arn in resources:
            if "*" in arn:
                acknowledge_wildcard(policy, arn, ROUTES_REASON)
        return policy
