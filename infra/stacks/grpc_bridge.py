"""The bridge stack: Fargate tasks that speak Pravega's gRPC, behind a load balancer. Only with grpc_bridge=true.

The load balancer passes TCP through, so TLS ends in the tasks, which have the certificate. It keeps the addresses of
clients, by which the bridge counts failed logins. A task that is about to end gets no new connections. It serves until
its clients have connected again, to another task, which each does once a minute.

Two tasks in different zones cost $15 a month, and the load balancer $17. Without it, clients would have to notice by
themselves that an address in DNS is that of a former task.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_elasticloadbalancingv2 as balancing
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_servicediscovery as servicediscovery
from constructs import Construct

from headrace import topology
from headrace.certificate_names import BRIDGE_LABEL, DOMAIN, dns_name, external_name
from headrace.topology.services import GRPC_BRIDGE
from infra.constructs import audit_subscriptions
from infra.constructs.acknowledgements import acknowledge, acknowledge_wildcard
from infra.constructs.controller_function import tls_environment, token_environment
from infra.constructs.deployed_network import (
    EXTERNAL_BRIDGE_TARGETS,
    DeployedNetwork,
    deployed_namespace,
    published,
)
from infra.constructs.deployed_resources import (
    BRIDGE_LOG_GROUP_NAME,
    BRIDGE_SERVICE_NAME,
    CLUSTER_NAME,
    GRPC_USERS_SECRET_NAME,
    OUTSIDE_SERVICE_NAME,
    DeployedResources,
)
from infra.constructs.endpoint_policies import IMAGE_PULL_ACTIONS
from infra.constructs.least_privilege import closed_role, grant_statements, read_certificate
from infra.constructs.segment_store_zone import DNS_TTL_S, ENVIRONMENT_REASON
from infra.constructs.store_network import StoreNetwork
from infra.packaging import image_context
from infra.settings import Settings

OUTSIDE = "External"
"""Begins the names of what the service for clients outside has."""
HEALTH_INTERVAL_S = 15
HEALTH_TIMEOUT_S = 10
HEALTH_RETRIES = 3
HEALTH_START_S = 30
CPU_PERCENT = 60
"""More tasks are started above it: a handshake takes half a millisecond of a core, a password 30 of them."""
DEREGISTRATION_S = 30
"""ECS stops a task after this time, in which it still serves; by then the balancer sends it no new connections."""

LOGIN_REASON = "ecr:GetAuthorizationToken is an action on the account: AWS defines no resource for it."
LOG_STREAMS_REASON = "Each task names its own log stream: the statement covers those of the bridge's log group."
ACCESS_LOG_REASON = "A load balancer that passes TCP through writes no access log: that is for listeners with TLS."


class GrpcBridgeStack(cdk.Stack):
    """Service, load balancer, and the DNS name `controller` of both."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, network: StoreNetwork, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: bridge for Pravega's clients", **kwargs)
        self._settings = settings
        seen = network.seen_from(self)
        self._log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=BRIDGE_LOG_GROUP_NAME,
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        audit_subscriptions.subscribe_bridge(self._log_group)
        cluster = ecs.Cluster.from_cluster_attributes(
            self, "Cluster", cluster_name=CLUSTER_NAME, vpc=seen.vpc, security_groups=[]
        )
        image = self._image()
        self._roles = self._task_role(), self._execution_role(image)
        self.service = self._service("", cluster, image, seen)
        self._balance(seen.vpc, seen.store_subnets, seen.balancer_group)
        if settings.external_domain is not None:
            self._serve_outside(cluster, image, seen)

    def _service(
        self, kind: str, cluster: ecs.ICluster, image: ecr_assets.DockerImageAsset, seen: DeployedNetwork
    ) -> ecs.FargateService:
        """A service of the bridge; `kind` is "" for clients in the network, or begins the names of its constructs."""
        name = OUTSIDE_SERVICE_NAME if kind else BRIDGE_SERVICE_NAME
        service = ecs.FargateService(
            self,
            f"{kind}Service",
            service_name=name,
            cluster=cluster,
            task_definition=self._task(kind, name, image),
            platform_version=ecs.FargatePlatformVersion.VERSION1_4,
            desired_count=GRPC_BRIDGE.tasks,
            min_healthy_percent=100,
            max_healthy_percent=200,
            circuit_breaker=ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            vpc_subnets=ec2.SubnetSelection(subnets=seen.store_subnets),
            security_groups=[seen.bridge_group],
            assign_public_ip=False,
            enable_execute_command=False,
            enable_ecs_managed_tags=True,
            propagate_tags=ecs.PropagatedTagSource.SERVICE,
            health_check_grace_period=cdk.Duration.seconds(HEALTH_START_S),
        )
        count = service.auto_scale_task_count(min_capacity=GRPC_BRIDGE.tasks, max_capacity=GRPC_BRIDGE.tasks_max)
        count.scale_on_cpu_utilization("Cpu", target_utilization_percent=CPU_PERCENT)
        return service

    def _serve_outside(self, cluster: ecs.ICluster, image: ecr_assets.DockerImageAsset, seen: DeployedNetwork) -> None:
        """A second service, whose tasks tell clients the addresses of stores outside."""
        service = self._service(OUTSIDE, cluster, image, seen)
        tasks = balancing.NetworkTargetGroup.from_target_group_attributes(
            self, "OutsideTasks", target_group_arn=published(self, EXTERNAL_BRIDGE_TARGETS)
        )
        service.attach_to_network_target_group(tasks)

    def _balance(self, vpc: ec2.IVpc, subnets: list[ec2.ISubnet], group: ec2.ISecurityGroup) -> None:
        balancer = balancing.NetworkLoadBalancer(
            self,
            "Balancer",
            load_balancer_name=BRIDGE_SERVICE_NAME,
            vpc=vpc,
            vpc_subnets=ec2.SubnetSelection(subnets=subnets),
            internet_facing=False,
            cross_zone_enabled=True,
            security_groups=[group],
        )
        acknowledge(balancer, "AwsSolutions-ELB2", ACCESS_LOG_REASON)
        tasks = balancing.NetworkTargetGroup(
            self,
            "Tasks",
            vpc=vpc,
            port=GRPC_BRIDGE.port,
            protocol=balancing.Protocol.TCP,
            target_type=balancing.TargetType.IP,
            preserve_client_ip=True,
            # The task ends its connections itself, when their calls are answered.
            connection_termination=False,
            deregistration_delay=cdk.Duration.seconds(DEREGISTRATION_S),
            health_check=balancing.HealthCheck(protocol=balancing.Protocol.TCP, interval=cdk.Duration.seconds(10)),
        )
        listener = balancer.add_listener("Grpc", port=GRPC_BRIDGE.port, protocol=balancing.Protocol.TCP)
        listener.add_target_groups("Tasks", tasks)
        self.service.attach_to_network_target_group(tasks)
        self.service.node.add_dependency(listener)
        named = servicediscovery.Service(
            self,
            "Name",
            namespace=deployed_namespace(self),
            name=BRIDGE_LABEL,
            description=f"The bridge of Headrace, as {BRIDGE_LABEL}.{DOMAIN}",
            dns_record_type=servicediscovery.DnsRecordType.A,
            dns_ttl=cdk.Duration.seconds(DNS_TTL_S),
            load_balancer=True,
        )
        named.register_load_balancer("Balancer", balancer)

    def _task(self, kind: str, name: str, image: ecr_assets.DockerImageAsset) -> ecs.FargateTaskDefinition:
        task_role, execution_role = self._roles
        task = ecs.FargateTaskDefinition(
            self,
            f"{kind}Task",
            family=name,
            cpu=GRPC_BRIDGE.cpu_units,
            memory_limit_mib=GRPC_BRIDGE.memory_mb,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=ecs.CpuArchitecture.ARM64, operating_system_family=ecs.OperatingSystemFamily.LINUX
            ),
            task_role=task_role,
            execution_role=execution_role,
        )
        acknowledge(task, "AwsSolutions-ECS2", ENVIRONMENT_REASON)
        task.add_container(
            "Bridge",
            container_name="grpc-bridge",
            image=ecs.ContainerImage.from_docker_image_asset(image),
            environment=self._environment() | (self._outside_environment() if kind else {}),
            readonly_root_filesystem=True,
            stop_timeout=cdk.Duration.seconds(GRPC_BRIDGE.stop_timeout_s),
            health_check=ecs.HealthCheck(
                command=["CMD", "python", "-m", GRPC_BRIDGE.probe],
                interval=cdk.Duration.seconds(HEALTH_INTERVAL_S),
                timeout=cdk.Duration.seconds(HEALTH_TIMEOUT_S),
                retries=HEALTH_RETRIES,
                start_period=cdk.Duration.seconds(HEALTH_START_S),
            ),
            logging=ecs.LogDriver.aws_logs(
                stream_prefix="bridge-external" if kind else "bridge",
                log_group=self._log_group,
                mode=ecs.AwsLogDriverMode.NON_BLOCKING,
                max_buffer_size=cdk.Size.mebibytes(8),
            ),
            port_mappings=[ecs.PortMapping(container_port=GRPC_BRIDGE.port)],
        )
        return task

    def _environment(self) -> dict[str, str]:
        """What headrace/bridge/config.py reads."""
        resources, settings = DeployedResources.seen_from(self), self._settings
        users = {"HEADRACE_GRPC_USERS_SECRET": GRPC_USERS_SECRET_NAME} if settings.tokens else {}
        return {
            "HEADRACE_GRPC_LISTEN_HOST": "0.0.0.0",
            "HEADRACE_GRPC_LISTEN_PORT": str(GRPC_BRIDGE.port),
            "HEADRACE_GRPC_HEALTH_PORT": str(GRPC_BRIDGE.health_port),
            "HEADRACE_ADVERTISED_HOST": dns_name(BRIDGE_LABEL),
            "HEADRACE_METADATA_TABLE": topology.METADATA_TABLE.name,
            "HEADRACE_REQUESTS_QUEUE_URL": resources.queue_url(topology.REQUESTS_QUEUE),
            "HEADRACE_TABLES_QUEUE_URL": resources.queue_url(topology.TABLES_QUEUE),
            "HEADRACE_COMMITS_QUEUE_URL": resources.queue_url(topology.COMMITS_QUEUE),
            "HEADRACE_ABORTS_QUEUE_URL": resources.queue_url(topology.ABORTS_QUEUE),
            "HEADRACE_CONTAINER_COUNT": str(settings.containers),
            "HEADRACE_GRPC_DRAIN_S": str(GRPC_BRIDGE.drain_s),
            "HEADRACE_STOP_DEADLINE_S": str(GRPC_BRIDGE.stop_deadline_s),
            "HEADRACE_LOG_FORMAT": "json",
            "AWS_DEFAULT_REGION": self.region,
            **settings.s3_environment,
            **token_environment(settings.effective_grants(GRPC_BRIDGE.grants)),
            **tls_environment(settings.tls, BRIDGE_LABEL),
            **users,
        }

    def _outside_environment(self) -> dict[str, str]:
        name = external_name(BRIDGE_LABEL, self._settings.external_domain or "")
        return {"HEADRACE_NETWORK": "external", "HEADRACE_ADVERTISED_HOST": name}

    def _image(self) -> ecr_assets.DockerImageAsset:
        with tempfile.TemporaryDirectory() as context:
            image_context.stage_image_context(Path(context), image=image_context.GRPC_BRIDGE)
            # The constructor of the asset copies the context; the folder is not needed after that.
            return ecr_assets.DockerImageAsset(
                self,
                "Image",
                asset_name="headrace-grpc-bridge",
                directory=context,
                file=image_context.GRPC_BRIDGE.dockerfile,
                platform=ecr_assets.Platform.LINUX_ARM64,
            )

    def _task_role(self) -> iam.IRole:
        resources, settings = DeployedResources.seen_from(self), self._settings
        users = [
            iam.PolicyStatement(
                sid="ReadUsers", actions=["secretsmanager:GetSecretValue"], resources=[resources.grpc_users_arn]
            )
        ]
        role = closed_role(
            self,
            "TaskRole",
            service="ecs-tasks.amazonaws.com",
            description="Bridge of Headrace",
            statements=[
                *grant_statements(settings.effective_grants(GRPC_BRIDGE.grants), resources),
                read_certificate(resources, BRIDGE_LABEL),
                *(users if settings.tokens else ()),
            ],
        )
        return role.without_policy_updates()

    def _execution_role(self, image: ecr_assets.DockerImageAsset) -> iam.IRole:
        """The role with which ECS starts a task: it pulls the image and writes the logs."""
        streams = DeployedResources.seen_from(self).log_streams_arn(BRIDGE_LOG_GROUP_NAME)
        role = closed_role(
            self,
            "ExecutionRole",
            service="ecs-tasks.amazonaws.com",
            description="ECS, when it starts a bridge of Headrace",
            statements=[
                iam.PolicyStatement(sid="Login", actions=["ecr:GetAuthorizationToken"], resources=["*"]),
                iam.PolicyStatement(
                    sid="PullImage", actions=list(IMAGE_PULL_ACTIONS), resources=[image.repository.repository_arn]
                ),
                iam.PolicyStatement(
                    sid="WriteLogs", actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[streams]
                ),
            ],
        )
        acknowledge_wildcard(role, "*", LOGIN_REASON)
        acknowledge_wildcard(role, streams, LOG_STREAMS_REASON)
        return role.without_policy_updates()
