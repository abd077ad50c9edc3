"""The segment stores of one availability zone: an ECS service of tasks, each with a volume of its own.

One service per zone, because placement on Fargate is best effort and a store must stay in its zone. ECS never moves a
task to balance zones: a new task is a store with an empty volume.

With three copies of each log a deployment starts the new task first (minimum 100 %, maximum 200 %). The logs gain its
copy before the old task is stopped, so that there are three copies throughout. With one copy ECS never runs two tasks
of a store at once (minimum 0 %, maximum 100 %).

A process that dies is restarted inside its task (segmentstore_fargate.supervised) and finds its
journal again; a task that is replaced does not. The health check therefore fails until the store has served all that is
its own, so that the next store is replaced only then; from then on it asks only whether the processes are alive and
their journals work. An outage of DynamoDB or S3 must not cost the events that only a journal has. A task that never
served has no such events and ends by itself, so that a bad image is rolled back in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_servicediscovery as servicediscovery
from constructs import Construct

from headrace import topology
from headrace.certificate_names import store_label
from headrace.topology import SegmentStoreService
from infra.constructs.acknowledgements import acknowledge
from infra.constructs.controller_function import tls_environment
from infra.constructs.deployed_resources import DeployedResources, service_name

APPLICATION_TAG, APPLICATION = "application", "headrace"
"""The tag of all resources."""

OPEN_FILES_MAX = 65_536

HEALTH_INTERVAL_S = 30
HEALTH_TIMEOUT_S = 10
HEALTH_RETRIES = 10
HEALTH_START_S = 300
"""With the retries a store has 600 s to serve all that is its own: it may wait for its former self (300 s), and for
others to bring their data to S3."""

CACHE_SHARE = 0.5
"""Part of the task's memory for appended data; the rest is for the process, its buffers and the page cache."""

STOP_MARGIN_S = 20
"""Left of the stop time-out for closing connections and the journal, after a store has sent to S3 what it could."""

DNS_TTL_S = 5
"""A name that still has the address of a former task does no harm: the task there has no certificate for it."""

ENVIRONMENT_REASON = "The variables are names, numbers and zones of this template. ECS injects the one secret."


@dataclass(frozen=True, slots=True)
class StoreTaskShared:
    """What the stores of all zones have in common."""

    cluster: ecs.ICluster
    image: ecs.ContainerImage
    execution_role: iam.IRole
    volume_role: iam.IRole
    security_group: ec2.ISecurityGroup
    log_group: logs.ILogGroup
    size: SegmentStoreService
    """How large a store is, and how many a zone has."""
    containers: int
    s3_environment: Mapping[str, str]
    copies: int
    function_networks: tuple[str, ...]
    """The subnets of the functions that reach stores: connections are reserved for them."""
    zone_networks: str
    """The networks of clients with their zones."""
    replica_secret: secretsmanager.ISecret | None
    """What the stores prove to each other; None with one copy."""
    token_environment: Mapping[str, str]
    """Where the keys for delegation tokens are; empty without tokens."""
    tls: str
    """The mode of TLS."""
    external_environments: Sequence[Mapping[str, str]]
    """What the stores of each zone announce to clients outside; empty ones if there are none."""
    namespace: servicediscovery.IPrivateDnsNamespace | None
    """Where stores have their DNS names; None without TLS."""


class SegmentStoreZone(Construct):
    """Service number `index` of `count`, in the zone of `subnet`, which has the id `zone_id`.

    `task_role` may read the certificate of this service.
    """

    def __init__(
        self,
        scope: Construct,
        index: int,
        count: int,
        *,
        subnet: ec2.ISubnet,
        zone_id: str,
        task_role: iam.IRole,
        shared: StoreTaskShared,
    ) -> None:
        super().__init__(scope, f"Zone{index}")
        self.name = store_label(index)
        self._task_role = task_role
        is_replicated = shared.copies > 1
        volume = self._volume(shared)
        self.task = self._task(shared, volume, _environment(self, index, count, zone_id, shared))
        self.service = ecs.FargateService(
            self,
            "Service",
            service_name=service_name(index),
            cluster=shared.cluster,
            task_definition=self.task,
            platform_version=ecs.FargatePlatformVersion.VERSION1_4,
            desired_count=shared.size.stores_per_zone if is_replicated else 1,
            min_healthy_percent=100 if is_replicated else 0,
            max_healthy_percent=200 if is_replicated else 100,
            availability_zone_rebalancing=ecs.AvailabilityZoneRebalancing.DISABLED,
            circuit_breaker=ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            vpc_subnets=ec2.SubnetSelection(subnets=[subnet]),
            security_groups=[shared.security_group],
            assign_public_ip=False,
            enable_execute_command=False,
            enable_ecs_managed_tags=True,
            propagate_tags=ecs.PropagatedTagSource.SERVICE,
            cloud_map_options=None if shared.namespace is None else dns_entry(shared.namespace, self.name),
        )
        self.service.add_volume(volume)

    def _volume(self, shared: StoreTaskShared) -> ecs.ServiceManagedVolume:
        """gp3: group commit needs few, large, sequential writes."""
        return ecs.ServiceManagedVolume(
            self,
            "Volume",
            name="journal",
            managed_ebs_volume=ecs.ServiceManagedEBSVolumeConfiguration(
                size=cdk.Size.gibibytes(shared.size.volume_gib),
                volume_type=ec2.EbsDeviceVolumeType.GP3,
                iops=shared.size.volume_iops,
                throughput=shared.size.volume_throughput_mib_s,
                file_system_type=ecs.FileSystemType.XFS,
                encrypted=True,
                role=shared.volume_role,
                # CloudFormation tags no volumes: without this the costs of volumes have no application. The service has
                # the same tag, so its tags are not propagated as well: a volume may have a key only once.
                tag_specifications=[ecs.EBSTagSpecification(tags={APPLICATION_TAG: APPLICATION})],
            ),
        )

    def _task(
        self, shared: StoreTaskShared, volume: ecs.ServiceManagedVolume, environment: dict[str, str]
    ) -> ecs.FargateTaskDefinition:
        task = ecs.FargateTaskDefinition(
            self,
            "Task",
            family=f"headrace-{self.name}",
            cpu=shared.size.cpu_units,
            memory_limit_mib=shared.size.memory_mb,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=ecs.CpuArchitecture.ARM64, operating_system_family=ecs.OperatingSystemFamily.LINUX
            ),
            task_role=self._task_role,
            execution_role=shared.execution_role,
        )
        acknowledge(task, "AwsSolutions-ECS2", ENVIRONMENT_REASON)
        container = task.add_container(
            "Store",
            container_name="segment-store",
            image=shared.image,
            environment=environment,
            secrets=_secrets(shared),
            readonly_root_filesystem=True,
            stop_timeout=cdk.Duration.seconds(shared.size.stop_timeout_s),
            health_check=_health_check(),
            logging=ecs.LogDriver.aws_logs(
                stream_prefix=self.name,
                log_group=shared.log_group,
                # Logs that cannot be delivered are dropped rather than waited for by the process that logs.
                mode=ecs.AwsLogDriverMode.NON_BLOCKING,
                max_buffer_size=cdk.Size.mebibytes(8),
            ),
            port_mappings=[
                ecs.PortMapping(container_port=port)
                for first, last in _ports(shared)
                for port in range(first, last + 1)
            ],
        )
        container.add_ulimits(
            ecs.Ulimit(name=ecs.UlimitName.NOFILE, soft_limit=OPEN_FILES_MAX, hard_limit=OPEN_FILES_MAX)
        )
        volume.mount_in(container, container_path=shared.size.volume_path, read_only=False)
        task.add_volume(name=volume.name, configured_at_launch=True)
        return task


def dns_entry(namespace: servicediscovery.IPrivateDnsNamespace, label: str) -> ecs.CloudMapOptions:
    """The addresses of the tasks of a service, which change with each task."""
    return ecs.CloudMapOptions(
        cloud_map_namespace=namespace,
        name=label,
        dns_record_type=servicediscovery.DnsRecordType.A,
        dns_ttl=cdk.Duration.seconds(DNS_TTL_S),
    )


def _ports(shared: StoreTaskShared) -> list[tuple[int, int]]:
    """Ranges of ports that other tasks, clients and scrapers of metrics connect to."""
    ports = [shared.size.wire_ports, shared.size.health_ports]
    return [*ports, shared.size.replica_ports] if shared.copies > 1 else ports


def _secrets(shared: StoreTaskShared) -> dict[str, ecs.Secret]:
    """Variables that ECS reads from Secrets Manager when it starts a task."""
    if shared.replica_secret is None:
        return {}
    return {"HEADRACE_REPLICA_SECRET": ecs.Secret.from_secrets_manager(shared.replica_secret)}


def _health_check() -> ecs.HealthCheck:
    return ecs.HealthCheck(
        command=["CMD", "python", "-m", "segmentstore_fargate.probe"],
        interval=cdk.Duration.seconds(HEALTH_INTERVAL_S),
        timeout=cdk.Duration.seconds(HEALTH_TIMEOUT_S),
        retries=HEALTH_RETRIES,
        start_period=cdk.Duration.seconds(HEALTH_START_S),
    )


def _environment(scope: Construct, index: int, count: int, zone_id: str, shared: StoreTaskShared) -> dict[str, str]:
    """What segmentstore_fargate reads. The address to advertise is the task's own, which it asks ECS for.

    With three copies a store asks ECS for its name, too: each task is another store. With one copy a task takes the
    place of the task before it, and its name.
    """
    resources = DeployedResources.seen_from(scope)
    if shared.copies > 1:
        identity = {
            "HEADRACE_REPLICA_PORT": str(shared.size.replica_port),
            "HEADRACE_CLUSTER_ID": cluster_id(scope),
        }
    else:
        identity = {"HEADRACE_STORE_ID": f"store-{index}"}
    return (
        identity
        | dict(shared.s3_environment)
        | dict(shared.token_environment)
        | tls_environment(shared.tls, store_label(index))
        | dict(shared.external_environments[index])
        | {
            "HEADRACE_COPIES": str(shared.copies),
            "HEADRACE_STORE_INDEX": str(index),
            "HEADRACE_STORE_COUNT": str(count),
            "HEADRACE_PROCESSES": str(shared.size.processes),
            "HEADRACE_CONTAINER_COUNT": str(shared.containers),
            "HEADRACE_DATA_DIR": shared.size.volume_path,
            "HEADRACE_LISTEN_HOST": "0.0.0.0",
            "HEADRACE_LISTEN_PORT": str(shared.size.wire_port),
            "HEADRACE_HEALTH_PORT": str(shared.size.health_port),
            "HEADRACE_CONNECTIONS_PER_ADDRESS_MAX": str(shared.size.connections_per_address_max),
            "HEADRACE_RESERVED_NETWORKS": ",".join(shared.function_networks),
            "HEADRACE_ZONE": zone_id,
            "HEADRACE_ZONE_NETWORKS": shared.zone_networks,
            "HEADRACE_METADATA_TABLE": topology.METADATA_TABLE.name,
            "HEADRACE_CHUNK_BUCKET": resources.chunk_bucket_name,
            "HEADRACE_SCALING_REPORTS_QUEUE_URL": resources.queue_url(topology.SCALING_REPORTS_QUEUE),
            "HEADRACE_CACHE_BYTES": str(int(shared.size.memory_mb * CACHE_SHARE) * 1024 * 1024),
            "HEADRACE_STOP_DEADLINE_S": str(shared.size.stop_timeout_s - STOP_MARGIN_S),
            "HEADRACE_LOG_FORMAT": "json",
            "HEADRACE_METRICS_SERVICE": service_name(index),
            "AWS_DEFAULT_REGION": cdk.Stack.of(scope).region,
        }
    )


def cluster_id(scope: Construct) -> str:
    """32 hexadecimal digits that name the deployment: the random part of the stack's id, which updates do not change.

    The id ends with a UUID: "arn:aws:cloudformation:us-east-1:123456789012:stack/Name/UUID".
    """
    uuid = cdk.Fn.select(2, cdk.Fn.split("/", cdk.Stack.of(scope).stack_id))
    return cdk.Fn.join("", cdk.Fn.split("-", uuid))
