"""The segment stores stack: one service per availability zone, deployed one zone after the other, and the canary.

The services depend on each other in a chain. So an update replaces the stores of one zone at a time, and stops at the
first store that does not start. If logs are replicated, a gate between two services waits until all logs have their
copies again.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from headrace.certificate_names import store_label
from headrace.topology import REPLICATION_GATE, SEGMENT_STORES
from infra.constructs.acknowledgements import acknowledge, acknowledge_wildcard
from infra.constructs.canary import Canary
from infra.constructs.controller_function import ControllerFunction, external_environment, token_environment
from infra.constructs.deployed_network import deployed_namespace
from infra.constructs.deployed_resources import (
    CLUSTER_NAME,
    REPLICA_SECRET_NAME,
    STORE_LOG_GROUP_NAME,
    DeployedResources,
)
from infra.constructs.endpoint_policies import IMAGE_PULL_ACTIONS
from infra.constructs.least_privilege import (
    acknowledge_object_grants,
    closed_role,
    grant_statements,
    read_certificate,
)
from infra.constructs.log_alarms import LogAlarm, log_alarms
from infra.constructs.named_metrics import METRICS_NAMESPACE
from infra.constructs.replication_gate import ReplicationGate, tls_step
from infra.constructs.segment_store_zone import SegmentStoreZone, StoreTaskShared
from infra.constructs.store_network import StoreNetwork
from infra.packaging.image_context import SEGMENT_STORE, stage_image_context
from infra.packaging.lambda_bundle import lambda_code
from infra.settings import Settings

LOGIN_REASON = "ecr:GetAuthorizationToken is an action on the account: AWS defines no resource for it."
LOG_STREAMS_REASON = "Each task names its own log stream: the statement covers those of the stores' log group."
ROTATION_REASON = (
    "Stores prove the secret to each other at every connection, and tasks keep the value with which they were started. "
    "A rotation would cut the connections between old and new tasks; a new deployment of the stack replaces it."
)
VOLUME_POLICY_REASON = (
    "AWS's own policy for the role with which ECS attaches volumes, as ECS documents it: it is limited by tags to the "
    "volumes that ECS made."
)
VOLUME_KEY_REASON = "The account's default key for volumes is unknown here: the statements need EC2 as the caller."


class SegmentStoresStack(cdk.Stack):
    """Cluster, roles and one service per zone; `zones` in the order of the network's subnets."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, network: StoreNetwork, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: segment stores", **kwargs)
        self._log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=STORE_LOG_GROUP_NAME,
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        counted = [self._count_lines(each) for each in log_alarms(replicated=settings.is_replicated)]
        seen = network.seen_from(self)
        self.cluster = ecs.Cluster(
            self,
            "Cluster",
            cluster_name=CLUSTER_NAME,
            vpc=seen.vpc_of_subnets,
            container_insights_v2=ecs.ContainerInsights.ENABLED,
        )
        subnets = seen.store_subnets
        image = self._image()
        secret = self._replica_secret()
        shared = StoreTaskShared(
            cluster=self.cluster,
            image=ecs.ContainerImage.from_docker_image_asset(image),
            execution_role=self._execution_role(image, secret),
            volume_role=self._volume_role(),
            security_group=seen.stores_group,
            log_group=self._log_group,
            size=settings.segment_stores,
            containers=settings.containers,
            s3_environment=settings.s3_environment,
            copies=settings.log_copies,
            function_networks=tuple(subnet.ipv4_cidr_block for subnet in subnets),
            zone_networks=",".join(filter(None, [*seen.zone_networks(), settings.zone_networks])),
            replica_secret=secret if settings.is_replicated else None,
            token_environment=token_environment(settings.effective_grants(SEGMENT_STORES.grants)),
            tls=settings.tls,
            external_environments=[external_environment(settings, index) for index in range(len(subnets))],
            namespace=deployed_namespace(self) if settings.has_certificates else None,
        )
        self.zones = [
            SegmentStoreZone(
                self,
                index,
                len(subnets),
                subnet=subnet,
                zone_id=zone_id,
                task_role=self._task_role(index),
                shared=shared,
            )
            for index, (subnet, zone_id) in enumerate(zip(subnets, seen.zone_ids, strict=True))
        ]
        for zone in self.zones:
            zone.service.node.add_dependency(*counted)
        for before, after in pairwise(self.zones):
            after.service.node.add_dependency(before.service)
        if settings.is_replicated:
            self._add_gates(settings, network)
        if settings.canary:
            canary = Canary(self, settings, network)
            # Its first call finds stores.
            canary.node.add_dependency(*(zone.service for zone in self.zones))

    def _count_lines(self, watched: LogAlarm) -> logs.MetricFilter:
        """Count the lines of an event that has an alarm, from the first task on."""
        return logs.MetricFilter(
            self,
            f"Lines-{watched.event}",
            log_group=self._log_group,
            filter_pattern=logs.FilterPattern.literal(f'"{watched.searched}"'),
            metric_namespace=METRICS_NAMESPACE,
            metric_name=watched.metric,
        )

    def _add_gates(self, settings: Settings, network: StoreNetwork) -> None:
        """A gate between each two services, which the later one waits for, and the check before the first one."""
        gate = ControllerFunction(
            self,
            REPLICATION_GATE,
            code=lambda_code(),
            network=network,
            settings=settings,
        )
        self.zones[0].service.node.add_dependency(tls_step(self, gate.function, settings.tls))
        for before, after in pairwise(self.zones):
            passed = ReplicationGate(self, f"GateAfter-{before.name}", gate.function, before, zones=len(self.zones))
            after.service.node.add_dependency(passed.last)

    def _replica_secret(self) -> secretsmanager.Secret:
        """A random value that only tasks of these services get.

        It stays with one copy, as does the right to read it: tasks of before may have to be started again.
        """
        secret = secretsmanager.Secret(
            self,
            "ReplicaSecret",
            secret_name=REPLICA_SECRET_NAME,
            description="Headrace: what segment stores prove to each other",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                password_length=64, exclude_punctuation=True, include_space=False
            ),
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        acknowledge(secret, "AwsSolutions-SMG4", ROTATION_REASON)
        return secret

    def _image(self) -> ecr_assets.DockerImageAsset:
        with tempfile.TemporaryDirectory() as context:
            stage_image_context(Path(context))
            # The constructor of the asset copies the context; the folder is not needed after that.
            return ecr_assets.DockerImageAsset(
                self,
                "Image",
                asset_name="headrace-segment-store",
                directory=context,
                file=SEGMENT_STORE.dockerfile,
                platform=ecr_assets.Platform.LINUX_ARM64,
            )

    def _task_role(self, index: int) -> iam.IRole:
        """The role of a running store, which may read its own certificate and no other.

        Without tokens and TLS it may read token keys and the certificate, too: stores of before may still run.
        """
        resources = DeployedResources.seen_from(self)
        role = closed_role(
            self,
            f"TaskRole{index}",
            service="ecs-tasks.amazonaws.com",
            description=f"Segment store {index} of Headrace",
            statements=[
                *grant_statements(SEGMENT_STORES.grants, resources),
                read_certificate(resources, store_label(index)),
            ],
        )
        acknowledge_object_grants(role, SEGMENT_STORES.grants, resources)
        return role.without_policy_updates()

    def _execution_role(self, image: ecr_assets.DockerImageAsset, replica_secret: secretsmanager.Secret) -> iam.IRole:
        """The role with which ECS starts a store: it pulls the image, reads the secret and writes the logs."""
        streams = DeployedResources.seen_from(self).log_streams_arn(STORE_LOG_GROUP_NAME)
        role = closed_role(
            self,
            "ExecutionRole",
            service="ecs-tasks.amazonaws.com",
            description="ECS, when it starts a segment store of Headrace",
            statements=[
                iam.PolicyStatement(sid="Login", actions=["ecr:GetAuthorizationToken"], resources=["*"]),
                iam.PolicyStatement(
                    sid="PullImage", actions=list(IMAGE_PULL_ACTIONS), resources=[image.repository.repository_arn]
                ),
                iam.PolicyStatement(
                    sid="WriteLogs", actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[streams]
                ),
                iam.PolicyStatement(
                    sid="ReadSecret", actions=["secretsmanager:GetSecretValue"], resources=[replica_secret.secret_arn]
                ),
            ],
        )
        acknowledge_wildcard(role, "*", LOGIN_REASON)
        acknowledge_wildcard(role, streams, LOG_STREAMS_REASON)
        return role.without_policy_updates()

    def _volume_role(self) -> iam.IRole:
        name = "service-role/AmazonECSInfrastructureRolePolicyForVolumes"
        keys = self.format_arn(service="kms", resource="key", resource_name="*")
        role = iam.Role(
            self,
            "VolumeRole",
            assumed_by=iam.ServicePrincipal("ecs.amazonaws.com"),
            description="ECS, when it makes and attaches the volume of a segment store of Headrace",
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name)],
            inline_policies={"VolumeKey": iam.PolicyDocument(statements=self._key_statements(keys))},
        )
        acknowledge_wildcard(role, keys, VOLUME_KEY_REASON)
        policy = f"arn:<AWS::Partition>:iam::aws:policy/{name}"
        acknowledge(role, f"AwsSolutions-IAM4[Policy::{policy}]", VOLUME_POLICY_REASON)
        return role

    def _key_statements(self, keys: str) -> list[iam.PolicyStatement]:
        """The account may encrypt volumes with a key of its own by default. AWS's policy has no right to use one."""
        by_ec2 = {"kms:CallerAccount": self.account, "kms:ViaService": f"ec2.{self.region}.{self.url_suffix}"}
        return [
            iam.PolicyStatement(
                sid="UseVolumeKey",
                actions=["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext"],
                resources=[keys],
                conditions={"StringEquals": by_ec2},
            ),
            iam.PolicyStatement(
                sid="AttachWithVolumeKey",
                actions=["kms:CreateGrant"],
                resources=[keys],
                conditions={"StringEquals": by_ec2, "Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
        ]
