"""The wire port opens to two groups, stores have no route to the internet, and endpoints serve what they need."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import Assembly, known_assets

from headrace.topology import LARGEST_STORES, SEGMENT_STORES
from infra.constructs.store_network import metrics_peer

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceNetwork"
BUCKET = "arn:<AWS::Partition>:s3:::headrace-chunks-<AWS::AccountId>-<AWS::Region>"


def _group(assembly, name):
    (resource,) = [
        group for group in assembly.resources("AWS::EC2::SecurityGroup", STACK) if group.logical_id.startswith(name)
    ]
    return resource


def test_only_functions_clients_and_bridge_reach_the_wire_port(assembly: Assembly):
    stores = _group(assembly, "NetworkStores")
    assert "SecurityGroupIngress" not in stores.properties
    rules = [
        rule.properties
        for rule in assembly.resources("AWS::EC2::SecurityGroupIngress", STACK)
        if assembly.get(STACK, rule.properties["GroupId"]).logical_id == stores.logical_id
        and assembly.get(STACK, rule.properties["SourceSecurityGroupId"]).logical_id != stores.logical_id
    ]
    sources = {assembly.get(STACK, rule["SourceSecurityGroupId"]).logical_id for rule in rules}
    callers = ("NetworkFunctions", "NetworkClients", "NetworkBridge")
    assert sources == {_group(assembly, name).logical_id for name in callers}
    assert {(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in rules} == {
        ("tcp", *LARGEST_STORES.wire_ports)
    }


@pytest.mark.parametrize(
    ("kind", "peer"),
    [("Ingress", "SourceSecurityGroupId"), ("Egress", "DestinationSecurityGroupId")],
)
def test_stores_reach_each_other_on_replica_ports_only(assembly: Assembly, smallest_assembly: Assembly, kind, peer):
    def between_stores(each: Assembly):
        stores = _group(each, "NetworkStores").logical_id
        return [
            (rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
            for rule in (found.properties for found in each.resources(f"AWS::EC2::SecurityGroup{kind}", STACK))
            if {each.get(STACK, rule[name]).logical_id for name in ("GroupId", peer)} == {stores}
        ]

    for each in (assembly, smallest_assembly):
        assert between_stores(each) == [("tcp", *LARGEST_STORES.replica_ports)]


WITH_SETTINGS = """
import json, sys
import aws_cdk as cdk
from infra.settings import Settings
from infra.stacks.network import NetworkStack
found = []
for settings in (
    Settings(), Settings(copies=1), Settings(tokens=False), Settings(store_cpu=2, stores_per_zone=2, containers=12),
    Settings(spark_job=False),
):
    app = cdk.App(outdir=sys.argv[1])
    NetworkStack(app, "HeadraceNetwork", settings)
    found.append(json.load(open(f"{app.synth().directory}/HeadraceNetwork.template.json"))["Resources"])
print(json.dumps(found))
"""


def test_the_network_keeps_what_older_tasks_need(
    assembly: Assembly, project: Path, tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
):
    """It is deployed first: tasks of before, and those that a rollback starts again, still need their way."""
    program = f"import sys; sys.argv[1:] = [{str(tmp_path)!r}]\n" + WITH_SETTINGS
    with known_assets(project, tmp_path):
        finished = run_python(program)
    assert finished.returncode == 0, finished.stderr
    usual, one_copy, without_tokens, larger, without_job = json.loads(finished.stdout)
    assert one_copy == usual
    assert without_tokens == usual
    assert larger == usual
    gone = {
        each["Properties"]["Name"] for name, each in usual.items() if _is_parameter(each) and name not in without_job
    }
    assert gone == {"/headrace/network/client-subnet"}
    readers = {
        stack
        for stack, template in assembly.templates.items()
        if gone & {parameter.get("Default") for parameter in template["Parameters"].values()}
    }
    assert readers == {"HeadraceSpark"}, "which is destroyed before"


def _is_parameter(resource: dict[str, Any]) -> bool:
    return bool(resource["Type"] == "AWS::SSM::Parameter")


def test_no_other_stack_opens_a_group_of_the_network(assembly: Assembly):
    others = [r for r in assembly.resources("AWS::EC2::SecurityGroupIngress") if r.stack != STACK]
    for rule in others:
        assert assembly.get(rule.stack, rule.properties["GroupId"]).logical_id.startswith("Workers")


def test_stores_use_their_group_and_functions_theirs(assembly: Assembly, as_text: Callable[[object], str]):
    for service in assembly.resources("AWS::ECS::Service"):
        (group,) = service.properties["NetworkConfiguration"]["AwsvpcConfiguration"]["SecurityGroups"]
        assert "headracenetworkstoresgroup" in as_text(group)
    in_network = [f for f in assembly.resources("AWS::Lambda::Function") if "VpcConfig" in f.properties]
    assert in_network
    for function in in_network:
        (group,) = function.properties["VpcConfig"]["SecurityGroupIds"]
        assert "headracenetworkfunctionsgroup" in as_text(group)


def test_no_group_lets_the_world_in(assembly: Assembly):
    for group in assembly.resources("AWS::EC2::SecurityGroup"):
        for rule in group.properties.get("SecurityGroupIngress", []):
            assert rule.get("CidrIp") != "0.0.0.0/0", group.logical_id
    for rule in assembly.resources("AWS::EC2::SecurityGroupIngress"):
        assert "CidrIp" not in rule.properties


def test_stores_functions_and_bridge_reach_what_they_need(assembly: Assembly):
    """A route that is added later, such as that of a peering, opens nothing."""
    endpoints, stores = (_group(assembly, f"Network{name}").logical_id for name in ("Endpoints", "Stores"))
    more = {
        "NetworkStores": {(stores, *LARGEST_STORES.replica_ports)},
        "NetworkFunctions": {(stores, *LARGEST_STORES.wire_ports)},
        "NetworkBridge": {(stores, *LARGEST_STORES.wire_ports)},
    }
    for name, others in more.items():
        group = _group(assembly, name)
        rules = group.properties["SecurityGroupEgress"]
        lists = [rule["DestinationPrefixListId"]["Fn::GetAtt"] for rule in rules]
        assert sorted(attribute for _, attribute in lists) == ["DynamoDb", "S3"]
        assert {assembly.get(STACK, {"Ref": found}).type for found, _ in lists} == {"Custom::HeadracePrefixLists"}
        assert {(rule["FromPort"], rule["ToPort"]) for rule in rules} == {(443, 443)}
        to_groups = {
            (assembly.get(STACK, found["DestinationSecurityGroupId"]).logical_id, found["FromPort"], found["ToPort"])
            for found in (each.properties for each in assembly.resources("AWS::EC2::SecurityGroupEgress", STACK))
            if assembly.get(STACK, found["GroupId"]).logical_id == group.logical_id
        }
        assert to_groups == {(endpoints, 443, 443), *others}


def test_each_closed_group_has_rules_of_its_own(assembly: Assembly, external_assembly: Assembly):
    """EC2 lets everything out of a group that has none in its own description."""
    for each in (assembly, external_assembly):
        for group in each.resources("AWS::EC2::SecurityGroup"):
            open_to_all = [
                rule for rule in group.properties["SecurityGroupEgress"] if rule.get("CidrIp") == "0.0.0.0/0"
            ]
            assert bool(open_to_all) == group.logical_id.startswith(("NetworkClients", "Workers")), group.logical_id


def test_only_the_finder_may_ask_for_prefix_lists(assembly: Assembly):
    function = assembly.named("AWS::Lambda::Function", "FunctionName")["headrace-prefix-lists"]
    role = assembly.get(STACK, function.properties["Role"]).properties
    statements = {each["Sid"]: each["Action"] for each in role["Policies"][0]["PolicyDocument"]["Statement"]}
    assert set(statements) == {"FindPrefixLists", "WriteLogs"}
    assert statements["FindPrefixLists"] == "ec2:DescribeManagedPrefixLists"


def test_store_subnets_have_no_route_out(assembly: Assembly):
    routed = {
        assembly.get(STACK, route.properties["RouteTableId"]).logical_id
        for route in assembly.resources("AWS::EC2::Route", STACK)
    }
    assert routed
    assert not [table for table in routed if "stores" in table]


def test_metrics_are_read_from_the_chosen_network_only(smallest_assembly: Assembly):
    (rule,) = [
        rule
        for group in smallest_assembly.resources("AWS::EC2::SecurityGroup", STACK)
        for rule in group.properties.get("SecurityGroupIngress", [])
        if "CidrIp" in rule
    ]
    assert rule["CidrIp"] == "10.1.2.0/24"
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", *LARGEST_STORES.health_ports)


def test_a_security_group_can_read_metrics():
    assert metrics_peer("sg-0a1b2c3d").unique_id == "sg-0a1b2c3d"


def test_history_is_read_past_the_nat_gateway(assembly: Assembly):
    """Each subnet that chunks are read from has a route to S3 of its own."""
    tables = {
        assembly.get(STACK, each.properties["SubnetId"]).logical_id: each.properties["RouteTableId"]["Ref"]
        for each in assembly.resources("AWS::EC2::SubnetRouteTableAssociation", STACK)
    }
    to_s3 = [
        table["Ref"]
        for endpoint in assembly.resources("AWS::EC2::VPCEndpoint", STACK)
        if endpoint.properties["VpcEndpointType"] == "Gateway"
        and endpoint.logical_id.endswith("S3" + endpoint.logical_id[-8:])
        for table in endpoint.properties["RouteTableIds"]
    ]
    assert len(to_s3) == len(set(to_s3)), "a route table takes one endpoint of a service"
    for subnet, table in tables.items():
        assert (table in to_s3) == ("Public" not in subnet and "public" not in subnet), subnet


ANYONE_READS = ("prod-<AWS::Region>-starport-layer-bucket/*", "aws-glue-*/*")
"""Buckets of AWS, whose links AWS signs."""


def test_endpoints_serve_this_account_only(assembly: Assembly, as_text: Callable[[object], str]):
    endpoints = assembly.resources("AWS::EC2::VPCEndpoint", STACK)
    assert len(endpoints) == 8
    for endpoint in endpoints:
        statements = endpoint.properties["PolicyDocument"]["Statement"]
        assert statements
        for statement in statements:
            assert statement["Effect"] == "Allow"
            account = statement.get("Condition", {}).get("StringEquals", {}).get("aws:PrincipalAccount")
            if account is None:
                assert statement["Action"] == "s3:GetObject"
                assert as_text(statement["Resource"]).rpartition(":::")[2] in ANYONE_READS
            else:
                assert account == {"Ref": "AWS::AccountId"}


def test_stores_reach_no_bucket_but_theirs(assembly: Assembly, as_text: Callable[[object], str]):
    """What a role allows must pass the endpoint as well: the statements of both are compared."""
    policies = {
        each.logical_id.removeprefix("NetworkVpc")[:-8]: each.properties["PolicyDocument"]["Statement"]
        for each in assembly.resources("AWS::EC2::VPCEndpoint", STACK)
    }
    passed = {
        (action, as_text(resource))
        for statement in [*policies["S3"], *policies["DynamoDb"], *policies["Sqs"]]
        for action in _list(statement["Action"])
        for resource in _list(statement["Resource"])
    }
    wildcards = {resource for _, resource in passed if resource.endswith("*")}
    assert wildcards == {f"{BUCKET}/*", "arn:<AWS::Partition>:s3:::prod-<AWS::Region>-starport-layer-bucket/*"}
    for role in (*_task_roles(assembly), *_roles_of_functions_in_the_network(assembly)):
        for statement in role.properties["Policies"][0]["PolicyDocument"]["Statement"]:
            for action in _list(statement["Action"]):
                if action.startswith(("s3:", "dynamodb:", "sqs:")):
                    assert {(action, as_text(each)) for each in _list(statement["Resource"])} <= passed


def _task_roles(assembly):
    tasks = assembly.resources("AWS::ECS::TaskDefinition")
    return [assembly.get(task.stack, task.properties["TaskRoleArn"]) for task in tasks]


def _roles_of_functions_in_the_network(assembly):
    functions = [each for each in assembly.resources("AWS::Lambda::Function") if "VpcConfig" in each.properties]
    return [assembly.get(each.stack, each.properties["Role"]) for each in functions]


def _list(value):
    return value if isinstance(value, list) else [value]


def test_endpoints_serve_what_a_store_needs(assembly: Assembly, as_text: Callable[[object], str]):
    endpoints = [e.properties for e in assembly.resources("AWS::EC2::VPCEndpoint", STACK)]
    kinds = {as_text(e["ServiceName"]).partition("<AWS::Region>.")[2]: e["VpcEndpointType"] for e in endpoints}
    assert kinds == {
        "s3": "Gateway",
        "dynamodb": "Gateway",
        "ecr.api": "Interface",
        "ecr.dkr": "Interface",
        "logs": "Interface",
        "sqs": "Interface",
        "secretsmanager": "Interface",
    }
    gateways = [as_text(e["ServiceName"]).rpartition(".")[2] for e in endpoints if e["VpcEndpointType"] == "Gateway"]
    assert sorted(gateways) == ["dynamodb", "s3", "s3"], "one for stores, one for clients"
    for endpoint in endpoints:
        if endpoint["VpcEndpointType"] == "Interface":
            assert len(endpoint["SubnetIds"]) == SEGMENT_STORES.stores
            assert endpoint["PrivateDnsEnabled"] is True


def test_secrets_are_read_within_the_network(assembly: Assembly, as_text: Callable[[object], str]):
    (endpoint,) = [
        each.properties
        for each in assembly.resources("AWS::EC2::VPCEndpoint", STACK)
        if as_text(each.properties["ServiceName"]).endswith(".secretsmanager")
    ]
    statements = endpoint["PolicyDocument"]["Statement"]
    assert {each["Action"] for each in statements} == {"secretsmanager:GetSecretValue"}
    names = {as_text(each["Resource"]).rpartition(":")[2] for each in statements}
    assert names == {
        "headrace-replica-secret-??????",
        "headrace-token-keys-??????",
        "headrace-certificate-*-??????",
        "headrace-grpc-users-??????",
    }


def test_without_the_spark_job_nothing_faces_the_internet(smallest_assembly: Assembly):
    assert smallest_assembly.resources("AWS::EC2::NatGateway") == []
    assert smallest_assembly.resources("AWS::EC2::InternetGateway") == []
    assert smallest_assembly.resources("AWS::EC2::Route") == []
