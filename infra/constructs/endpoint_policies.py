"""Policies of the VPC's endpoints: the requests that may leave the network through them with any credentials.

Roles limit the principals of this deployment. The policy of an endpoint limits all credentials that are used within the
network. Without one, code that runs in a store could send events to a bucket of another account with credentials of
that account.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from headrace import topology
from infra.constructs.deployed_resources import DeployedResources
from infra.constructs.least_privilege import GRANTED_ACTIONS, LOG_WRITER_ACTIONS, QUEUE_WORKER_ACTIONS

IMAGE_PULL_ACTIONS = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
"""The actions of ECS to pull the image of a store, in addition to the log-in."""


def store_objects(scope: Construct) -> list[iam.PolicyStatement]:
    """Stores and functions use the chunk bucket; Fargate gets layers of images from a bucket of ECR."""
    resources = DeployedResources.seen_from(scope)
    return [
        _own(scope, "Chunks", _actions("chunks:read", "chunks:write"), [resources.granted("chunks:read")]),
        _own(scope, "ListChunks", _actions("chunks:list"), [resources.granted("chunks:list")]),
        _aws_objects(scope, "ImageLayers", f"prod-{cdk.Stack.of(scope).region}-starport-layer-bucket"),
    ]


def client_objects(scope: Construct) -> list[iam.PolicyStatement]:
    """Principals of this account use the buckets they may; signed links are theirs too. Glue loads its libraries."""
    return [_own(scope, "OwnPrincipals", ["s3:*"], ["*"]), _aws_objects(scope, "GlueLibraries", "aws-glue-*")]


def use_table(scope: Construct) -> list[iam.PolicyStatement]:
    actions = _actions("metadata:read", "metadata:write")
    return [_own(scope, "MetadataTable", actions, [DeployedResources.seen_from(scope).metadata_table_arn])]


def use_queues(scope: Construct) -> list[iam.PolicyStatement]:
    """The queues of the topology, dead-letter queues included."""
    resources = DeployedResources.seen_from(scope)
    queues = [each for queue in topology.QUEUES for each in (queue, queue.dead_letters)]
    actions = sorted({"sqs:SendMessage", *QUEUE_WORKER_ACTIONS})
    return [_own(scope, "Queues", actions, [resources.queue_arn(queue) for queue in queues])]


def write_logs(scope: Construct) -> list[iam.PolicyStatement]:
    """Log streams of this account; groups are made by CloudFormation, not from within the network."""
    groups = cdk.Stack.of(scope).format_arn(
        service="logs", resource="log-group", resource_name="*", arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME
    )
    return [_own(scope, "Logs", list(LOG_WRITER_ACTIONS), [groups])]


def pull_images(scope: Construct) -> list[iam.PolicyStatement]:
    """Images of this account; the log-in is an action without a resource."""
    repositories = cdk.Stack.of(scope).format_arn(service="ecr", resource="repository", resource_name="*")
    return [
        _own(scope, "Login", ["ecr:GetAuthorizationToken"], ["*"]),
        _own(scope, "PullImages", list(IMAGE_PULL_ACTIONS), [repositories]),
    ]


def read_secrets(scope: Construct) -> list[iam.PolicyStatement]:
    """ECS reads the secret of the stores when it starts a task. Stores and functions read the keys for tokens.

    Stores and the bridge read their certificates, and the bridge its users.
    """
    resources = DeployedResources.seen_from(scope)
    return [
        _own(scope, "ReplicaSecret", ["secretsmanager:GetSecretValue"], [resources.replica_secret_arn]),
        _own(scope, "TokenKeys", _actions("token-keys:read"), [resources.token_keys_arn]),
        _own(scope, "Certificates", _actions("token-keys:read"), [resources.certificate_secret_arn("*")]),
        _own(scope, "GrpcUsers", _actions("token-keys:read"), [resources.grpc_users_arn]),
    ]


def _actions(*grants: topology.Grant) -> list[str]:
    return [action for grant in grants for action in GRANTED_ACTIONS[grant]]


def _own(scope: Construct, sid: str, actions: list[str], resources: list[str]) -> iam.PolicyStatement:
    """Principals of this account only."""
    return iam.PolicyStatement(
        sid=sid,
        principals=[iam.AnyPrincipal()],
        actions=actions,
        resources=resources,
        conditions={"StringEquals": {"aws:PrincipalAccount": cdk.Stack.of(scope).account}},
    )


def _aws_objects(scope: Construct, sid: str, bucket: str) -> iam.PolicyStatement:
    """Reading from a bucket of AWS, where the links are signed by AWS and not by this account."""
    arn = cdk.Stack.of(scope).format_arn(service="s3", account="", region="", resource=bucket, resource_name="*")
    return iam.PolicyStatement(sid=sid, principals=[iam.AnyPrincipal()], actions=["s3:GetObject"], resources=[arn])
