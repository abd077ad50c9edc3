"""Turns the words of the topology ("metadata:read") into IAM statements on exactly one resource each.

Every function and the segment stores each get a role with only these statements. The policies are part of the role,
and the role is immutable, so that no construct of the CDK can add to it. A wildcard is used only if AWS supports no
narrower resource, and is acknowledged with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from aws_cdk import aws_iam as iam
from constructs import Construct

from headrace import topology
from headrace.topology import Function, Grant
from infra.constructs.acknowledgements import acknowledge_wildcard
from infra.constructs.deployed_resources import DeployedResources

LOG_WRITER_ACTIONS = ("logs:CreateLogStream", "logs:PutLogEvents")

GRANTED_ACTIONS: Mapping[Grant, tuple[str, ...]] = MappingProxyType(
    {
        "metadata:read": ("dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query"),
        "metadata:write": ("dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:PutItem"),
        "requests:send": ("sqs:SendMessage",),
        "tables:send": ("sqs:SendMessage",),
        "commits:send": ("sqs:SendMessage",),
        "aborts:send": ("sqs:SendMessage",),
        "ticks:send": ("sqs:SendMessage",),
        "scaling-reports:send": ("sqs:SendMessage",),
        "chunks:read": ("s3:GetObject",),
        "chunks:write": ("s3:DeleteObject", "s3:PutObject"),
        # With it, reading a chunk that is gone is answered 404 and not 403, which a store must tell apart.
        "chunks:list": ("s3:ListBucket",),
        # A store asks ECS not to stop it while logs need it.
        "tasks:protect": ("ecs:GetTaskProtection", "ecs:UpdateTaskProtection"),
        "token-keys:read": ("secretsmanager:GetSecretValue",),
        "audit-log:write": LOG_WRITER_ACTIONS,
    }
)

QUEUE_WORKER_ACTIONS = (
    "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
)
"""What an event source mapping does in the name of the function that it feeds, and how this says when to try again."""

NETWORK_INTERFACE_ACTIONS = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:UnassignPrivateIpAddresses",
)
"""The actions of the Lambda service with the role of a function in a VPC."""

OBJECTS_REASON = "Chunks get their names at run time: the statement covers the objects of the one chunk bucket."
TASKS_REASON = "Tasks get their ids when they start: the statement covers those of the one cluster."
LOG_STREAMS_REASON = "Log streams get their names at run time: the statement covers those of one log group."
NETWORK_INTERFACE_REASON = (
    "Lambda attaches network interfaces in the name of the function and demands these actions on every resource, since "
    "the interfaces do not exist yet. A Deny keeps the function's own code from using them."
)


def grant_statements(grants: Iterable[Grant], resources: DeployedResources) -> list[iam.PolicyStatement]:
    """One statement per grant, in the order of `grants`, and what a process that writes metadata must not write."""
    grants = tuple(grants)
    allowed = [
        iam.PolicyStatement(
            sid=_statement_id(grant), actions=list(GRANTED_ACTIONS[grant]), resources=[resources.granted(grant)]
        )
        for grant in grants
    ]
    return [*allowed, keep_trust(resources)] if "metadata:write" in grants else allowed


TRUST_PARTITION = "trust"
"""The partition of the record with the trusted certification authorities."""
LEASES_PARTITION = "cluster"
"""That of the records of stores and containers."""
TRUST_ACTIONS = ("dynamodb:DeleteItem", "dynamodb:PutItem")


def keep_trust(resources: DeployedResources) -> iam.PolicyStatement:
    """For a process that writes metadata: it must not declare an authority that its clients would trust."""
    return iam.PolicyStatement(
        sid="KeepTrust",
        effect=iam.Effect.DENY,
        actions=list(TRUST_ACTIONS),
        resources=[resources.metadata_table_arn],
        conditions={"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": [TRUST_PARTITION]}},
    )


def trust_statement(resources: DeployedResources) -> iam.PolicyStatement:
    """For the function that publishes the authorities: this record, and no other."""
    return iam.PolicyStatement(
        sid="PublishTrust",
        actions=["dynamodb:GetItem", "dynamodb:PutItem"],
        resources=[resources.metadata_table_arn],
        conditions={"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [TRUST_PARTITION]}},
    )


def leases_statement(resources: DeployedResources) -> iam.PolicyStatement:
    """For the function that looks which stores run: their leases are in this partition."""
    return iam.PolicyStatement(
        sid="ReadLeases",
        actions=["dynamodb:Query"],
        resources=[resources.metadata_table_arn],
        conditions={"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [LEASES_PARTITION]}},
    )


CANARY_PARTITIONS = (
    "requests/*",
    "retention-due/*",
    f"scope-guard/{topology.CANARY_SCOPE}",
    f"scope/{topology.CANARY_SCOPE}",
    "scopes",
    f"stream/{topology.CANARY_SCOPE}/*",
)
"""Those that get records when a stream of the canary's scope is created."""


def canary_statement(resources: DeployedResources) -> iam.PolicyStatement:
    """For the canary, which creates its own scope and streams."""
    return iam.PolicyStatement(
        sid="CreateOwnStreams",
        actions=["dynamodb:ConditionCheckItem", "dynamodb:PutItem"],
        resources=[resources.metadata_table_arn],
        conditions={"ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(CANARY_PARTITIONS)}},
    )


def read_certificate(resources: DeployedResources, label: str) -> iam.PolicyStatement:
    """For a process with a certificate: its own, and no other."""
    return iam.PolicyStatement(
        sid="ReadCertificate",
        actions=["secretsmanager:GetSecretValue"],
        resources=[resources.certificate_secret_arn(label)],
    )


def queue_worker_statement(queue_arns: Sequence[str]) -> iam.PolicyStatement:
    """What the role of a function needs to be fed from queues."""
    return iam.PolicyStatement(sid="WorkOnQueue", actions=list(QUEUE_WORKER_ACTIONS), resources=list(queue_arns))


def function_role(
    scope: Construct,
    function: Function,
    *,
    grants: Sequence[Grant],
    log_group_name: str,
    more_statements: Sequence[iam.PolicyStatement] = (),
) -> iam.IRole:
    """The role of one function: those of its grants that count in the deployment, its log group and, if it reaches
    segment stores, its network interfaces."""
    resources = DeployedResources.seen_from(scope)
    streams = resources.log_streams_arn(log_group_name)
    statements = [
        *grant_statements(grants, resources),
        *more_statements,
        iam.PolicyStatement(sid="WriteLogs", actions=list(LOG_WRITER_ACTIONS), resources=[streams]),
    ]
    if function.reaches_segment_stores:
        statements += _network_interface_statements(resources.function_arn(function))
    role = closed_role(
        scope,
        "Role",
        service="lambda.amazonaws.com",
        description=f"Function {function.name} of Headrace",
        statements=statements,
    )
    acknowledge_wildcard(role, streams, LOG_STREAMS_REASON)
    acknowledge_object_grants(role, grants, resources)
    if "audit-log:write" in grants:
        acknowledge_wildcard(role, resources.granted("audit-log:write"), LOG_STREAMS_REASON)
    if function.reaches_segment_stores:
        acknowledge_wildcard(role, "*", NETWORK_INTERFACE_REASON)
    return role.without_policy_updates()


def closed_role(
    scope: Construct, id_: str, *, service: str, description: str, statements: Sequence[iam.PolicyStatement]
) -> iam.Role:
    """A role that `service` assumes, with its whole policy inline."""
    return iam.Role(
        scope,
        id_,
        assumed_by=iam.ServicePrincipal(service),
        description=description,
        inline_policies={"LeastPrivilege": iam.PolicyDocument(statements=list(statements))},
    )


def acknowledge_object_grants(role: Construct, grants: Iterable[Grant], resources: DeployedResources) -> None:
    """Accept the patterns of grants that are on objects of a bucket or on tasks of the cluster."""
    reasons = {
        resources.granted(grant): TASKS_REASON if grant == "tasks:protect" else OBJECTS_REASON for grant in grants
    }
    for pattern, reason in reasons.items():
        if pattern.endswith("/*"):
            acknowledge_wildcard(role, pattern, reason)


def _network_interface_statements(function_arn: str) -> list[iam.PolicyStatement]:
    actions = list(NETWORK_INTERFACE_ACTIONS)
    return [
        iam.PolicyStatement(sid="LambdaAttachesInterfaces", actions=actions, resources=["*"]),
        iam.PolicyStatement(
            sid="CodeDoesNot",
            effect=iam.Effect.DENY,
            actions=actions,
            resources=["*"],
            conditions={"ArnEquals": {"lambda:SourceFunctionArn": function_arn}},
        ),
    ]


def _statement_id(grant: Grant) -> str:
    """ "metadata:read" becomes "MetadataRead"; a statement's id has letters and digits only."""
    return "".join(letter for letter in grant.title() if letter.isalnum())
