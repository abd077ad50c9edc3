"""The wire port opens to two groups, stores have no route to the internet, and endpoints serve what they need."""

from __future__ import annotations

import pytest

from headrace.topology import SEGMENT_STORES

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceNetwork"


def _group(assembly, name):
    (found,) = [
        group for group in assembly.resources("AWS::EC2::SecurityGroup", STACK) if group.logical_id.startswith(name)
    ]
    return found


def test_only_functions_and_clients_reach_the_wire_port(assembly):
    stores = _group(assembly, "NetworkStores")
    assert "SecurityGroupIngress" not in stores.properties
    rules = [
        rule.properties
        for rule in assembly.resources("AWS::EC2::SecurityGroupIngress", STACK)
        if assembly.get(STACK, rule.properties["GroupId"]).logical_id == stores.logical_id
    ]
    sources = {assembly.get(STACK, rule["SourceSecurityGroupId"]).logical_id for rule in rules}
    assert sources == {_group(assembly, "NetworkFunctions").logical_id, _group(assembly, "NetworkClients").logical_id}
    assert {(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in rules} == {
        ("tcp", *SEGMENT_STORES.wire_ports)
    }


def test_no_other_stack_opens_a_group_of_the_network(assembly):
    others = [r for r in assembly.resources("AWS::EC2::SecurityGroupIngress") if r.stack != STACK]
    for rule in others:
        assert assembly.get(rule.stack, rule.properties["GroupId"]).logical_id.startswith("Workers")


def test_stores_use_their_group_and_functions_theirs(assembly, as_text):
    for service in assembly.resources("AWS::ECS::Service"):
        (group,) = service.properties["NetworkConfiguration"]["AwsvpcConfiguration"]["SecurityGroups"]
        assert "NetworkStores" in as_text(group)
    in_network = [f for f in assembly.resources("AWS::Lambda::Function") if "VpcConfig" in f.properties]
    assert in_network
    for function in in_network:
        (group,) = function.properties["VpcConfig"]["SecurityGroupIds"]
        assert "NetworkFunctions" in as_text(group)


def test_no_group_lets_the_world_in(assembly):
    for group in assembly.resources("AWS::EC2::SecurityGroup"):
        for rule in group.properties.get("SecurityGroupIngress", []):
            assert rule.get("CidrIp") != "0.0.0.0/0", group.logical_id
    for rule in assembly.resources("AWS::EC2::SecurityGroupIngress"):
        assert "CidrIp" not in rule.properties


def test_stores_and_functions_call_nothing_but_https_and_stores(assembly):
    for name in ("NetworkStores", "NetworkFunctions"):
        group = _group(assembly, name)
        for rule in group.properties["SecurityGroupEgress"]:
            assert (rule["FromPort"], rule["ToPort"]) == (443, 443)


def test_store_subnets_have_no_route_out(assembly):
    routed = {
        assembly.get(STACK, route.properties["RouteTableId"]).logical_id
        for route in assembly.resources("AWS::EC2::Route", STACK)
    }
    assert routed
    assert not [table for table in routed if "stores" in table]


def test_endpoints_serve_what_a_store_needs(assembly, as_text):
    endpoints = [e.properties for e in assembly.resources("AWS::EC2::VPCEndpoint", STACK)]
    kinds = {as_text(e["ServiceName"]).partition("<AWS::Region>.")[2]: e["VpcEndpointType"] for e in endpoints}
    assert kinds == {
        "s3": "Gateway",
        "dynamodb": "Gateway",
        "ecr.api": "Interface",
        "ecr.dkr": "Interface",
        "logs": "Interface",
        "sqs": "Interface",
    }
    for endpoint in endpoints:
        if endpoint["VpcEndpointType"] == "Interface":
            assert len(endpoint["SubnetIds"]) == SEGMENT_STORES.stores
            assert endpoint["PrivateDnsEnabled"] is True


def test_without_the_spark_job_nothing_faces_the_internet(smallest_assembly):
    assert smallest_assembly.resources("AWS::EC2::NatGateway") == []
    assert smallest_assembly.resources("AWS::EC2::InternetGateway") == []
    assert smallest_assembly.resources("AWS::EC2::Route") == []
