"""Every function and the segment stores have a role of their own that allows what the topology grants, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from cdk_assembly import Assembly

from headrace import topology
from headrace.metadata.trust import TRUST_PARTITION
from headrace.model.containers import CLUSTER_PARTITION
from headrace.topology.services import GRPC_BRIDGE
from infra.constructs.least_privilege import (
    GRANTED_ACTIONS,
    LOG_WRITER_ACTIONS,
    NETWORK_INTERFACE_ACTIONS,
    QUEUE_WORKER_ACTIONS,
)

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

TABLE = "arn:<AWS::Partition>:dynamodb:<AWS::Region>:<AWS::AccountId>:table/headrace-metadata"
BUCKET = "arn:<AWS::Partition>:s3:::headrace-chunks-<AWS::AccountId>-<AWS::Region>"
QUEUE = "arn:<AWS::Partition>:sqs:<AWS::Region>:<AWS::AccountId>:"
RESOURCES = {
    "metadata:read": TABLE,
    "metadata:write": TABLE,
    "requests:send": f"{QUEUE}headrace-requests.fifo",
    "tables:send": f"{QUEUE}headrace-tables.fifo",
    "commits:send": f"{QUEUE}headrace-commits.fifo",
    "aborts:send": f"{QUEUE}headrace-aborts.fifo",
    "ticks:send": f"{QUEUE}headrace-ticks",
    "scaling-reports:send": f"{QUEUE}headrace-scaling-reports",
    "chunks:read": f"{BUCKET}/*",
    "chunks:write": f"{BUCKET}/*",
    "chunks:list": BUCKET,
    "tasks:protect": "arn:<AWS::Partition>:ecs:<AWS::Region>:<AWS::AccountId>:task/headrace/*",
    "token-keys:read": (
        "arn:<AWS::Partition>:secretsmanager:<AWS::Region>:<AWS::AccountId>:secret:headrace-token-keys-??????"
    ),
    "audit-log:write": "arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:log-group:/headrace/audit:*",
}
SECRET = "arn:<AWS::Partition>:secretsmanager:<AWS::Region>:<AWS::AccountId>:secret:"
ACTIONS_WITHOUT_RESOURCES = {
    "ec2:DescribeManagedPrefixLists",
    *NETWORK_INTERFACE_ACTIONS,
    "ecr:GetAuthorizationToken",
    # Glue's network interfaces and metrics
    "cloudwatch:PutMetricData",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcAttribute",
    "ec2:DescribeVpcEndpoints",
}
"""Actions that AWS allows on `*` only, or demands on it."""


def _certificate(label: str) -> str:
    return f"{SECRET}headrace-certificate-{label}-??????"


def _list(value) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _statements(role) -> list[dict[str, Any]]:
    return [s for policy in role.properties.get("Policies", []) for s in policy["PolicyDocument"]["Statement"]]


def _allowed(role, as_text) -> set[tuple[str, str]]:
    """(action, resource) of every Allow."""
    return {
        (action, as_text(resource))
        for statement in _statements(role)
        if statement["Effect"] == "Allow"
        for action in _list(statement["Action"])
        for resource in _list(statement["Resource"])
    }


def _role_of(assembly, declared):
    function = assembly.named("AWS::Lambda::Function", "FunctionName")[f"headrace-{declared.name}"]
    return assembly.get(function.stack, function.properties["Role"])


def _expected_of_grants(grants, *, tokens: bool = False) -> set[tuple[str, str]]:
    counting = [grant for grant in grants if tokens or grant != "token-keys:read"]
    return {(action, RESOURCES[grant]) for grant in counting for action in GRANTED_ACTIONS[grant]}


def _expected(declared, *, tokens: bool = False) -> set[tuple[str, str]]:
    group = f"arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:log-group:/aws/lambda/headrace-{declared.name}:*"
    allowed = {(action, group) for action in LOG_WRITER_ACTIONS}
    allowed |= _expected_of_grants(declared.grants, tokens=tokens)
    for queue in (each for declared_queue in topology.QUEUES for each in (declared_queue, declared_queue.dead_letters)):
        if queue.function == declared.name:
            allowed |= {(action, f"{QUEUE}{queue.name}") for action in QUEUE_WORKER_ACTIONS}
    if declared.reaches_segment_stores:
        allowed |= {(action, "*") for action in NETWORK_INTERFACE_ACTIONS}
    return allowed


def test_every_word_of_the_topology_is_mapped():
    assert set(GRANTED_ACTIONS) == set(get_args(topology.Grant)) == set(RESOURCES)
    assert all(GRANTED_ACTIONS.values())


def test_every_word_of_the_topology_is_used():
    used = {grant for declared in topology.FUNCTIONS for grant in declared.grants}
    assert used | set(topology.SEGMENT_STORES.grants) == set(get_args(topology.Grant))


def test_the_gates_only_read(assembly: Assembly, smallest_assembly: Assembly, as_text: Callable[[object], str]):
    declared, of_keys = topology.REPLICATION_GATE, topology.TOKEN_KEY_GATE
    assert (declared.grants, of_keys.grants) == (("metadata:read",), ("token-keys:read",))
    assert _allowed(_role_of(assembly, declared), as_text) == _expected(declared)
    assert _allowed(_role_of(smallest_assembly, of_keys), as_text) == _expected(of_keys, tokens=True)


def test_only_ecs_reads_the_secret_when_it_starts_a_store(assembly: Assembly, as_text: Callable[[object], str]):
    secret = assembly.only("AWS::SecretsManager::Secret")
    readers = {
        role.logical_id
        for role in assembly.resources("AWS::IAM::Role")
        for action, resource in _allowed(role, as_text)
        if action.startswith("secretsmanager:")
        if (action, resource) == ("secretsmanager:GetSecretValue", f"<{secret.logical_id}>")
    }
    execution_roles = {
        assembly.get(task.stack, task.properties["ExecutionRoleArn"]).logical_id
        for task in assembly.resources("AWS::ECS::TaskDefinition")
    }
    assert readers == execution_roles
    assert len(readers) == 1


@pytest.mark.parametrize("declared", topology.FUNCTIONS, ids=lambda declared: declared.name)
def test_a_function_may_do_exactly_what_it_is_granted(assembly: Assembly, declared, as_text: Callable[[object], str]):
    assert _allowed(_role_of(assembly, declared), as_text) == _expected(declared)


@pytest.mark.parametrize("declared", topology.FUNCTIONS, ids=lambda declared: declared.name)
def test_with_tokens_a_function_may_also_read_the_keys(
    smallest_assembly: Assembly, declared, as_text: Callable[[object], str]
):
    allowed = _allowed(_role_of(smallest_assembly, declared), as_text)
    assert allowed == _expected(declared, tokens=True)


def test_the_rotation_changes_the_one_secret(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    declared = topology.TOKEN_KEY_ROTATION
    secret = smallest_assembly.only("AWS::SecretsManager::Secret", "HeadraceTokenKeys")
    calls = ("DescribeSecret", "GetSecretValue", "PutSecretValue", "UpdateSecretVersionStage")
    changes = {(f"secretsmanager:{call}", f"<{secret.logical_id}>") for call in calls}
    assert _allowed(_role_of(smallest_assembly, declared), as_text) == {*_expected(declared), *changes}


def test_no_two_functions_share_a_role(assembly: Assembly):
    roles = [_role_of(assembly, declared) for declared in topology.FUNCTIONS]
    assert len({(role.stack, role.logical_id) for role in roles}) == len(topology.FUNCTIONS)


def test_segment_stores_may_do_exactly_what_they_are_granted(assembly: Assembly, as_text: Callable[[object], str]):
    """They may read token keys and certificates also in a deployment without: a rollback may start tasks of before."""
    expected = _expected_of_grants(topology.SEGMENT_STORES.grants, tokens=True)
    tasks = assembly.resources("AWS::ECS::TaskDefinition", "HeadraceSegmentStores")
    for task in tasks:
        role = assembly.get(task.stack, task.properties["TaskRoleArn"])
        label = str(task.properties["Family"]).removeprefix("headrace-")
        assert _allowed(role, as_text) == {*expected, ("secretsmanager:GetSecretValue", _certificate(label))}
    assert len(tasks) == topology.SEGMENT_STORES.stores


def test_the_bridge_may_do_exactly_what_it_is_granted(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    task = smallest_assembly.only("AWS::ECS::TaskDefinition", "HeadraceGrpcBridge")
    role = smallest_assembly.get(task.stack, task.properties["TaskRoleArn"])
    read = "secretsmanager:GetSecretValue"
    secrets = {(read, _certificate("controller")), (read, f"{SECRET}headrace-grpc-users-??????")}
    assert _allowed(role, as_text) == {*_expected_of_grants(GRPC_BRIDGE.grants, tokens=True), *secrets}


def test_the_issuer_writes_its_record_and_secrets_only(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    declared = topology.CERTIFICATES
    role = _role_of(smallest_assembly, declared)
    secrets = smallest_assembly.resources("AWS::SecretsManager::Secret", "HeadraceCertificates")
    replaces = {
        (f"secretsmanager:{call}", f"<{secret.logical_id}>")
        for secret in secrets
        for call in ("GetSecretValue", "PutSecretValue")
    }
    publishes = {("dynamodb:GetItem", TABLE), ("dynamodb:PutItem", TABLE), ("dynamodb:Query", TABLE)}
    assert _allowed(role, as_text) == {*_expected(declared), *replaces, *publishes}
    for sid, partition in (("PublishTrust", TRUST_PARTITION), ("ReadLeases", CLUSTER_PARTITION)):
        (statement,) = [each for each in _statements(role) if each["Sid"] == sid]
        assert statement["Condition"] == {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [partition]}}


def test_only_the_issuer_can_declare_an_authority(smallest_assembly: Assembly):
    """A store or a function that was taken over must not make its clients trust another authority."""
    writers = 0
    for role in smallest_assembly.resources("AWS::IAM::Role"):
        statements = _statements(role)
        if "dynamodb:PutItem" not in {action for each in statements for action in _list(each["Action"])}:
            continue
        writers += 1
        denied = [each for each in statements if each["Effect"] == "Deny" and "dynamodb:PutItem" in each["Action"]]
        if any(each.get("Sid") == "PublishTrust" for each in statements):
            assert denied == []
            continue
        (statement,) = denied
        assert set(statement["Action"]) == {"dynamodb:DeleteItem", "dynamodb:PutItem"}
        assert statement["Condition"] == {"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": [TRUST_PARTITION]}}
    assert writers > 10


def test_code_in_the_network_cannot_use_lambdas_interfaces(assembly: Assembly, as_text: Callable[[object], str]):
    for declared in topology.FUNCTIONS:
        denied = [s for s in _statements(_role_of(assembly, declared)) if s.get("Sid") == "CodeDoesNot"]
        assert len(denied) == int(declared.reaches_segment_stores)
        for statement in denied:
            source = statement["Condition"]["ArnEquals"]["lambda:SourceFunctionArn"]
            assert as_text(source).endswith(f":function:headrace-{declared.name}")
            assert set(statement["Action"]) == set(NETWORK_INTERFACE_ACTIONS)


def test_nothing_is_added_to_a_role_from_outside(assembly: Assembly):
    """Only the VPC's flow log and the cluster bring policies of their own; none is for a function or a store."""
    owners = {
        assembly.get(policy.stack, reference).logical_id
        for policy in assembly.resources("AWS::IAM::Policy")
        for reference in policy.properties["Roles"]
    }
    assert all("Rejected" in owner for owner in owners), owners


def test_no_role_allows_actions_by_pattern(assembly: Assembly, as_text: Callable[[object], str]):
    for role in assembly.resources("AWS::IAM::Role"):
        for action, resource in _allowed(role, as_text):
            assert "*" not in action, role.logical_id
            assert resource != "*" or action in ACTIONS_WITHOUT_RESOURCES, (role.logical_id, action)


def test_aws_managed_policies_are_only_the_one_that_ecs_demands(assembly: Assembly, as_text: Callable[[object], str]):
    managed = {
        as_text(arn).rpartition("/")[2]
        for role in assembly.resources("AWS::IAM::Role")
        for arn in role.properties.get("ManagedPolicyArns", [])
    }
    assert managed == {"AmazonECSInfrastructureRolePolicyForVolumes", "headrace-read-streams"}
