"""The HTTP API serves the topology's routes, each behind IAM, with the topology's functions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cdk_assembly import Assembly

from headrace import topology

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


def test_caller_policies_allow_invoking_this_api_only(assembly: Assembly, as_text: Callable[[object], str]):
    policies = assembly.named("AWS::IAM::ManagedPolicy", "ManagedPolicyName")
    names = {"headrace-read-streams", "headrace-write-streams", "headrace-manage-streams", "headrace-operate"}
    assert set(policies) == names
    api = assembly.only("AWS::ApiGatewayV2::Api").logical_id
    for policy in policies.values():
        for statement in policy.properties["PolicyDocument"]["Statement"]:
            assert statement["Action"] == "execute-api:Invoke"
            resources = statement["Resource"]
            for resource in resources if isinstance(resources, list) else [resources]:
                assert f":<{api}>/$default/" in as_text(resource)


def test_readers_may_not_change_streams(assembly: Assembly, as_text: Callable[[object], str]):
    policy = assembly.named("AWS::IAM::ManagedPolicy", "ManagedPolicyName")["headrace-read-streams"]
    (statement,) = policy.properties["PolicyDocument"]["Statement"]
    routes = [as_text(resource).partition("/$default/")[2] for resource in statement["Resource"]]
    assert [route for route in routes if not route.startswith("GET/")] == [
        "POST/v1/scopes/*/streams/*/next-cut",
        "POST/v1/scopes/*/streams/*/range-plans",
        "POST/v1/scopes/*/streams/*/segments/between",
        "POST/v1/scopes/*/streams/*/stream-cuts/check",
        "POST/v1/scopes/*/streams/*/stream-cuts/distance",
    ]
