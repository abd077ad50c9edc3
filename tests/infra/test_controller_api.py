"""The HTTP API serves the topology's routes, each behind IAM, with the topology's functions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cdk_assembly import Assembly

from headrace import topology
from headrace.topology.caller_access import MANAGED_POLICIES, patterns_of

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceControllerApi"


def _function_name(assembly, route) -> str:
    target = route.properties["Target"]["Fn::Join"][1]
    integration = assembly.get(STACK, target[-1])
    assert integration.properties["PayloadFormatVersion"] == "2.0"
    return str(assembly.get(STACK, integration.properties["IntegrationUri"]).properties["FunctionName"])


def test_the_routes_are_those_of_the_topology(assembly: Assembly):
    deployed = {
        (*route.properties["RouteKey"].split(" "), _function_name(assembly, route))
        for route in assembly.resources("AWS::ApiGatewayV2::Route")
    }
    assert deployed == {(route.method, route.path, f"headrace-{route.function}") for route in topology.ROUTES}


def test_every_route_demands_iam(assembly: Assembly):
    routes = assembly.resources("AWS::ApiGatewayV2::Route")
    assert len(routes) == len(topology.ROUTES)
    assert {route.properties["AuthorizationType"] for route in routes} == {"AWS_IAM"}


def test_every_route_may_call_its_function(assembly: Assembly):
    permissions = assembly.resources("AWS::Lambda::Permission", STACK)
    assert len(permissions) == len(topology.ROUTES)
    assert {each.properties["Principal"] for each in permissions} == {"apigateway.amazonaws.com"}
    assert all("SourceArn" in each.properties for each in permissions)


def test_calls_are_logged_with_their_caller_and_throttled(assembly: Assembly):
    stage = assembly.only("AWS::ApiGatewayV2::Stage").properties
    fields = json.loads(stage["AccessLogSettings"]["Format"])
    assert fields["requestId"] == "$context.requestId"
    assert fields["caller"] == "$context.identity.userArn"
    assert stage["StageName"] == "$default"
    assert stage["DefaultRouteSettings"]["ThrottlingRateLimit"] > 0
    assert not stage["DefaultRouteSettings"]["DetailedMetricsEnabled"], "metrics of each route, which cost $27 a month"
    assert stage["DefaultRouteSettings"]["ThrottlingBurstLimit"] >= stage["DefaultRouteSettings"]["ThrottlingRateLimit"]


def test_the_caller_policies_are_those_of_the_topology(assembly: Assembly, as_text: Callable[[object], str]):
    policies = assembly.named("AWS::IAM::ManagedPolicy", "ManagedPolicyName")
    assert set(policies) == {declared.name for declared in MANAGED_POLICIES}
    assert len(policies) == 5
    api = assembly.only("AWS::ApiGatewayV2::Api").logical_id
    for declared in MANAGED_POLICIES:
        (statement,) = policies[declared.name].properties["PolicyDocument"]["Statement"]
        assert (statement["Effect"], statement["Action"]) == ("Allow", "execute-api:Invoke")
        parts = [as_text(resource).partition(f":<{api}>/$default/") for resource in statement["Resource"]]
        assert sorted(pattern for _, _, pattern in parts) == sorted(patterns_of(declared.routes))
        assert all(arn.startswith("arn:<AWS::Partition>:execute-api:") for arn, _, _ in parts)
