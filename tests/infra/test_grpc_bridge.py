"""The bridge is an opt-in: two tasks with a certificate, behind a load balancer that passes TCP through."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import Assembly
from syntax_trees import syntax_tree

import headrace.bridge.config
from headrace.bridge.audit import LINES_S
from headrace.bridge.config import read_config
from headrace.bridge.server import CONNECTION_AGE_S
from headrace.model.tls_modes import TlsMode
from headrace.topology.services import GRPC_BRIDGE
from infra.packaging.image_context import GRPC_BRIDGE as IMAGE

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceGrpcBridge"


@pytest.fixture
def container(smallest_assembly: Assembly) -> dict[str, Any]:
    (container_definition,) = smallest_assembly.only("AWS::ECS::TaskDefinition", STACK).properties[
        "ContainerDefinitions"
    ]
    return dict(container_definition)


@pytest.fixture
def variables(container: dict[str, Any], as_text: Callable[[object], str]) -> dict[str, str]:
    return {each["Name"]: as_text(each["Value"]) for each in container["Environment"]}


def test_without_the_choice_there_is_no_bridge(assembly: Assembly):
    assert STACK not in assembly.templates
    assert assembly.resources("AWS::ElasticLoadBalancingV2::LoadBalancer") == []


def test_the_bridge_accepts_its_variables(variables: dict[str, str]):
    config = read_config(variables)
    assert (config.listen_host, config.listen_port) == ("0.0.0.0", GRPC_BRIDGE.port)
    assert config.advertised_host == config.tls.name == "controller.headrace.internal"
    assert config.tls.mode is TlsMode.REQUIRED
    assert config.users is not None
    assert config.users.secret == "headrace-grpc-users"
    assert config.health_port == GRPC_BRIDGE.health_port
    assert config.drain_s > CONNECTION_AGE_S * 1.1
    assert config.drain_s + config.stop_deadline_s + LINES_S < GRPC_BRIDGE.stop_timeout_s


def test_the_bridge_is_told_nothing_that_it_does_not_read(variables: dict[str, str]):
    library = Path(str(headrace.bridge.config.__file__)).parents[1]
    adapters = ("leaf_secrets.py", "log_lines.py", "token_keys.py")
    sources = [library / "bridge" / "config.py", library / "deployment_defaults.py"]
    sources += [library / "adapters" / name for name in adapters]
    known = {
        node.value
        for source in sources
        for node in ast.walk(syntax_tree(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {name for name in variables if name.startswith("HEADRACE_")} <= known


def test_the_task_is_small_and_read_only(smallest_assembly: Assembly, container: dict[str, Any]):
    task = smallest_assembly.only("AWS::ECS::TaskDefinition", STACK).properties
    assert (task["Cpu"], task["Memory"]) == (str(GRPC_BRIDGE.cpu_units), str(GRPC_BRIDGE.memory_mb))
    assert task["RuntimePlatform"]["CpuArchitecture"] == "ARM64"
    assert container["ReadonlyRootFilesystem"] is True
    assert container["HealthCheck"]["Command"] == ["CMD", "python", "-m", GRPC_BRIDGE.probe]
    assert container["StopTimeout"] == GRPC_BRIDGE.stop_timeout_s
    assert "Secrets" not in container


def test_two_tasks_serve_while_they_are_replaced(smallest_assembly: Assembly):
    service = smallest_assembly.only("AWS::ECS::Service", STACK).properties
    assert service["DesiredCount"] == 2
    assert service["DeploymentConfiguration"]["MinimumHealthyPercent"] == 100
    assert service["DeploymentConfiguration"]["DeploymentCircuitBreaker"] == {"Enable": True, "Rollback": True}
    network = service["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert (network["AssignPublicIp"], len(network["Subnets"])) == ("DISABLED", 2)
    scaling = smallest_assembly.only("AWS::ApplicationAutoScaling::ScalableTarget", STACK).properties
    assert (scaling["MinCapacity"], scaling["MaxCapacity"]) == (GRPC_BRIDGE.tasks, GRPC_BRIDGE.tasks_max)


def test_tls_passes_through_the_load_balancer(smallest_assembly: Assembly):
    balancer = smallest_assembly.only("AWS::ElasticLoadBalancingV2::LoadBalancer", STACK).properties
    assert (balancer["Type"], balancer["Scheme"]) == ("network", "internal")
    listener = smallest_assembly.only("AWS::ElasticLoadBalancingV2::Listener", STACK).properties
    assert (listener["Protocol"], listener["Port"]) == ("TCP", GRPC_BRIDGE.port)
    group = smallest_assembly.only("AWS::ElasticLoadBalancingV2::TargetGroup", STACK).properties
    attributes = {each["Key"]: each["Value"] for each in group["TargetGroupAttributes"]}
    assert attributes["preserve_client_ip.enabled"] == "true", "failed logins are counted by address"
    assert attributes["deregistration_delay.connection_termination.enabled"] == "false", "running calls are answered"
    assert (group["Protocol"], group["HealthCheckProtocol"], group["TargetType"]) == ("TCP", "TCP", "ip")


def test_clients_find_the_load_balancer_by_name(smallest_assembly: Assembly):
    named = smallest_assembly.only("AWS::ServiceDiscovery::Service", STACK).properties
    assert named["Name"] == "controller"
    instance = smallest_assembly.only("AWS::ServiceDiscovery::Instance", STACK).properties
    assert "AWS_ALIAS_DNS_NAME" in instance["InstanceAttributes"]


def test_the_bridge_is_reached_through_the_balancer_only(smallest_assembly: Assembly):
    groups = {
        each.properties["GroupDescription"].removesuffix(" (Headrace)"): each.logical_id
        for each in smallest_assembly.resources("AWS::EC2::SecurityGroup", "HeadraceNetwork")
    }
    opened = {
        (each.properties["GroupId"]["Fn::GetAtt"][0], each.properties["SourceSecurityGroupId"]["Fn::GetAtt"][0])
        for each in smallest_assembly.resources("AWS::EC2::SecurityGroupIngress", "HeadraceNetwork")
        if each.properties["FromPort"] == GRPC_BRIDGE.port
    }
    balancer, clients = groups["Load balancer of the gRPC bridge"], groups["Writers and readers of streams"]
    assert opened == {(groups["gRPC bridge"], balancer), (balancer, clients)}


def test_the_image_is_built_from_the_sources_of_the_bridge(smallest_assembly: Assembly):
    (context,) = [each.parents[2] for each in smallest_assembly.directory.glob(f"asset.*/{IMAGE.dockerfile}")]
    assert (context / "headrace" / "bridge" / "__main__.py").is_file()
    assert not (context / "segmentstore_fargate").exists()
    pins = (context / "requirements.txt").read_text()
    assert "grpcio==" in pins
    assert "cryptography" not in pins


def test_audit_lines_of_the_bridge_are_copied(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    subscription = smallest_assembly.only("AWS::Logs::SubscriptionFilter", STACK).properties
    assert as_text(subscription["LogGroupName"]) == "/headrace/grpc-bridge"
    permissions = smallest_assembly.resources("AWS::Lambda::Permission", "HeadraceProcessors")
    sources = [as_text(each.properties.get("SourceArn", "")) for each in permissions]
    assert len([each for each in sources if each.endswith("log-group:/headrace/grpc-bridge:*")]) == 1


def test_a_bridge_that_ends_raises_an_alarm(smallest_assembly: Assembly):
    alarms = smallest_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")
    running = alarms["headrace-grpc-bridge-running"].properties
    assert (running["Threshold"], running["TreatMissingData"]) == (2, "breaching")
    assert {"Name": "ServiceName", "Value": "headrace-grpc-bridge"} in running["Dimensions"]


def test_cdk_nag_found_nothing_that_is_not_explained(smallest_assembly: Assembly):
    report = json.loads((smallest_assembly.directory / "validation-report.json").read_text())
    assert [violation for each in report["pluginReports"] for violation in each["violations"]] == []
