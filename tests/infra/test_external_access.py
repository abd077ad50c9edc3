"""Clients outside the network are an opt-in: one load balancer, a listener for each process, and names for both."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cdk_assembly import Assembly

from headrace.bridge.config import read_config as read_bridge_config
from headrace.certificate_names import external_name, store_label
from headrace.model.external_access import ExternalOffer, Network
from headrace.topology.services import EXTERNAL_ACCESS, GRPC_BRIDGE, SEGMENT_STORES

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK, DOMAIN = "HeadraceExternal", "streams.example.com"
BALANCING = "AWS::ElasticLoadBalancingV2"
PORTS = range(12345, 12351)
"""Three zones with a store of one process each, and twice as many ports."""


def attributes(properties: dict[str, Any], name: str) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in properties[name]}


def test_without_the_choice_nothing_is_reached_from_outside(assembly: Assembly, smallest_assembly: Assembly):
    for each in (assembly, smallest_assembly):
        assert STACK not in each.templates
        functions = [
            resource.properties
            for resource in each.resources("AWS::Lambda::Function")
            if "Environment" in resource.properties
        ]
        assert not any("HEADRACE_EXTERNAL_DOMAIN" in function["Environment"]["Variables"] for function in functions)


def test_the_load_balancer_passes_tcp_through(external_assembly: Assembly):
    balancer = external_assembly.only(f"{BALANCING}::LoadBalancer", STACK).properties
    assert (balancer["Type"], balancer["Scheme"], len(balancer["Subnets"])) == ("network", "internet-facing", 3)
    assert attributes(balancer, "LoadBalancerAttributes")["load_balancing.cross_zone.enabled"] == "false"
    listeners = {each.properties["Port"]: each for each in external_assembly.resources(f"{BALANCING}::Listener", STACK)}
    assert sorted(listeners) == sorted([*PORTS, GRPC_BRIDGE.port])
    for listener in listeners.values():
        assert listener.properties["Protocol"] == "TCP"
        assert attributes(listener.properties, "ListenerAttributes") == {"tcp.idle_timeout.seconds": "6000"}


def test_each_port_has_a_target_group_of_its_own(external_assembly: Assembly, as_text: Callable[[object], str]):
    groups = external_assembly.named(f"{BALANCING}::TargetGroup", "Name")
    assert set(groups) == {*(f"headrace-port-{port}" for port in PORTS), "headrace-external-bridge"}
    for name, group in groups.items():
        found = attributes(group.properties, "TargetGroupAttributes")
        assert (group.properties["Protocol"], group.properties["TargetType"]) == ("TCP", "ip")
        assert found["preserve_client_ip.enabled"] == "true", "limits of an address are those of a client"
        if name != "headrace-external-bridge":
            assert "Targets" not in group.properties, "the function adds them"
            assert found["target_group_health.dns_failover.minimum_healthy_targets.count"] == "off"
            assert found["deregistration_delay.connection_termination.enabled"] == "true"
    forwarded = {
        each.properties["Port"]: external_assembly.get(STACK, each.properties["DefaultActions"][0]["TargetGroupArn"])
        for each in external_assembly.resources(f"{BALANCING}::Listener", STACK)
    }
    for port in PORTS:
        assert forwarded[port].properties["Name"] == f"headrace-port-{port}"


def test_names_lead_to_the_zone_of_a_store(external_assembly: Assembly, as_text: Callable[[object], str]):
    records = external_assembly.named("AWS::Route53::RecordSet", "Name")
    assert set(records) == {f"{label}.{DOMAIN}." for label in ("store-0", "store-1", "store-2", "controller")}
    for name, record in records.items():
        assert record.properties["HostedZoneId"] == "Z0123456789ABCDEFGHIJ"
        target = as_text(record.properties["AliasTarget"]["DNSName"])
        zone = dict(zip(("store-0", "store-1", "store-2"), ("a", "b", "c"), strict=True)).get(name.partition(".")[0])
        assert target.startswith(f"us-east-1{zone}.") == (zone is not None)


def test_stores_announce_the_ports_of_their_zone(external_assembly: Assembly, as_text: Callable[[object], str]):
    offered: list[int] = []
    for index in range(3):
        task = external_assembly.named("AWS::ECS::TaskDefinition", "Family")[f"headrace-store-{index}"]
        (container,) = task.properties["ContainerDefinitions"]
        variables = {each["Name"]: as_text(each["Value"]) for each in container["Environment"]}
        assert variables["HEADRACE_EXTERNAL_NAME"] == external_name(store_label(index), DOMAIN)
        first, last = map(int, variables["HEADRACE_EXTERNAL_PORTS"].split("-"))
        assert ExternalOffer("a.b", range(first, last + 1)).ports == EXTERNAL_ACCESS.ports(index, SEGMENT_STORES)
        offered += range(first, last + 1)
    assert offered == list(PORTS)


def test_only_named_networks_reach_the_balancer(external_assembly: Assembly, as_text: Callable[[object], str]):
    group = external_assembly.only("AWS::EC2::SecurityGroup", STACK).properties
    opened = {(each["CidrIp"], each["FromPort"], each["ToPort"]) for each in group["SecurityGroupIngress"]}
    ports = [(PORTS[0], PORTS[-1]), (GRPC_BRIDGE.port, GRPC_BRIDGE.port)]
    assert opened == {(cidr, *each) for cidr in ("203.0.113.0/24", "0.0.0.0/0") for each in ports}
    inside = {
        (
            as_text(each.properties["GroupId"]).rpartition("network")[2].partition("group")[0],
            each.properties["FromPort"],
        )
        for each in external_assembly.resources("AWS::EC2::SecurityGroupIngress", STACK)
    }
    assert inside == {("stores", SEGMENT_STORES.wire_port), ("bridge", GRPC_BRIDGE.port)}
    assert {each["FromPort"] for each in group["SecurityGroupEgress"]} == {port for _, port in inside}


def test_the_bridge_outside_answers_addresses_outside(external_assembly: Assembly, as_text: Callable[[object], str]):
    tasks = external_assembly.named("AWS::ECS::TaskDefinition", "Family")
    (container,) = tasks["headrace-grpc-bridge-external"].properties["ContainerDefinitions"]
    config = read_bridge_config({each["Name"]: as_text(each["Value"]) for each in container["Environment"]})
    assert (config.network, config.advertised_host) == (Network.EXTERNAL, f"controller.{DOMAIN}")
    (inside,) = tasks["headrace-grpc-bridge"].properties["ContainerDefinitions"]
    variables = {each["Name"]: as_text(each["Value"]) for each in inside["Environment"]}
    assert read_bridge_config(variables).network is Network.VPC
    services = external_assembly.named("AWS::ECS::Service", "ServiceName")
    (outside,) = services["headrace-grpc-bridge-external"].properties["LoadBalancers"]
    assert outside["ContainerPort"] == GRPC_BRIDGE.port
    assert "bridgetargets" in as_text(outside["TargetGroupArn"])


def test_stores_are_not_registered_by_ecs(external_assembly: Assembly):
    """ECS would stop a store that fails a health check of the load balancer."""
    services = external_assembly.named("AWS::ECS::Service", "ServiceName")
    for index in range(3):
        assert services[f"headrace-store-{index}"].properties.get("LoadBalancers", []) == []


def test_certificates_are_issued_again_for_the_domain(external_assembly: Assembly):
    issued = external_assembly.only("Custom::HeadraceCertificates").properties
    assert issued["ExternalDomain"] == DOMAIN
    functions = external_assembly.named("AWS::Lambda::Function", "FunctionName")
    for name in ("certificates", "segments", "plans", "key-value-tables"):
        variables = functions[f"headrace-{name}"].properties["Environment"]["Variables"]
        assert variables["HEADRACE_EXTERNAL_DOMAIN"] == DOMAIN


def test_targets_follow_tasks_and_the_minute(external_assembly: Assembly, as_text: Callable[[object], str]):
    rules = external_assembly.named("AWS::Events::Rule", "Name")
    assert rules["headrace-external-targets-minute"].properties["ScheduleExpression"] == "rate(1 minute)"
    pattern = rules["headrace-external-targets-tasks"].properties["EventPattern"]
    assert pattern["detail"]["lastStatus"] == ["RUNNING", "STOPPED"]
    function = external_assembly.named("AWS::Lambda::Function", "FunctionName")["headrace-external-targets"]
    assert "VpcConfig" not in function.properties, "the network has no endpoint of the load balancer's API"
    role = external_assembly.get(STACK, function.properties["Role"]).properties
    statements = {each["Sid"]: each for each in role["Policies"][0]["PolicyDocument"]["Statement"]}
    assert as_text(statements["KeepTargets"]["Resource"]).endswith(":targetgroup/headrace-port-*/*")
    assert all(action.startswith("elasticloadbalancing:Describe") for action in statements["SeeTargets"]["Action"])
    assert set(statements) == {"MetadataRead", "KeepTargets", "SeeTargets", "WriteLogs"}


def test_stores_outside_that_are_not_reached_raise_an_alarm(external_assembly: Assembly):
    alarms = external_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")
    assert alarms["headrace-external-stores-unreachable"].properties["Threshold"] == 0
    assert alarms["headrace-external-targets-errors"].properties["Namespace"] == "AWS/Lambda"
    assert alarms["headrace-grpc-bridge-external-running"].properties["TreatMissingData"] == "breaching"


def test_the_load_balancer_is_there_before_stores(external_assembly: Assembly):
    manifest = json.loads((external_assembly.directory / "manifest.json").read_text())["artifacts"]
    assert STACK in manifest["HeadraceSegmentStores"]["dependencies"]


def test_cdk_nag_found_nothing_that_is_not_explained(external_assembly: Assembly):
    report = json.loads((external_assembly.directory / "validation-report.json").read_text())
    assert [violation for each in report["pluginReports"] for violation in each["violations"]] == []
