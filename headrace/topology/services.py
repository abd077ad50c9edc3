"""The services of a deployment that run all the time: segment stores, the gRPC bridge, and the load balancer outside.

There is one ECS service of segment stores per availability zone, and one of the bridge in all zones, behind a load
balancer. Clients outside the network reach both through another load balancer.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from headrace.topology.kinds import Grant

_CPU_UNITS_PER_CORE = 1024

_IOPS_PER_PROCESS = 1_000
"""A journal syncs about a thousand times a second under load."""
_IOPS_INCLUDED = 3_000
_THROUGHPUT_INCLUDED_MIB_S = 125
"""Included in gp3's price. A process of one core writes less to its journal, own and foreign entries together."""
_THROUGHPUT_MAX_MIB_S = 1_000

TASK_MEMORY_GB = {1: range(2, 9), 2: range(4, 17), 4: range(8, 31), 8: range(16, 61, 4), 16: range(32, 121, 8)}
"""The memory that Fargate offers, by vCPU. Its smaller tasks have less than the core that a process of a store needs.

https://docs.aws.amazon.com/AmazonECS/latest/developerguide/fargate-tasks-services.html"""
VOLUME_GIB_MAX = 16_384
"""Of a gp3 volume that ECS manages."""
VOLUME_GIB_PER_PROCESS_MIN = 10
"""A process throttles its writers at three quarters of its part: there they have room for two minutes of outage of S3
at 60 MB/s."""


class SegmentStoreService(msgspec.Struct, frozen=True):
    """The segment stores of one deployment: one ECS service with `stores_per_zone` tasks per availability zone.

    `copies` is how many stores keep each entry of a log, in a deployment with at least as many zones. One with fewer
    zones keeps one copy.
    """

    module: str = "segmentstore_fargate"
    cluster: str = "headrace"
    """The ECS cluster, also of the bridge."""
    stores: int = 3
    stores_per_zone: int = 1
    copies: int = 3
    wire_port: int = 12345
    health_port: int = 12545
    replica_port: int = 12745
    """The first of as many ports as there are processes, like `wire_port` and `health_port`. Stores replicate here."""
    connections_per_address_max: int = 1024
    """Of a process, a quarter of all. Functions of one subnet share an address, as do clients behind a NAT gateway."""
    cpu_units: int = 1024
    memory_mb: int = 4096
    volume_gib: int = 50
    volume_path: str = "/var/lib/headrace"
    stop_timeout_s: int = 120
    grants: tuple[Grant, ...] = (
        "metadata:read",
        "metadata:write",
        "chunks:read",
        "chunks:write",
        "chunks:list",
        "scaling-reports:send",
        "tasks:protect",
        "token-keys:read",
    )

    def of_size(self, stores_per_zone: int, cores: int, memory_gb: int, volume_gib: int) -> SegmentStoreService:
        """The same service with tasks of another size, or another number of them.

        Raises:
            ValueError: Fargate or EBS has no such size, or it is too small for a store. The message begins with the
                name of the setting in `infra/settings.py`.
        """
        if cores not in TASK_MEMORY_GB:
            raise ValueError(f"store_cpu: {cores} must be one of {', '.join(map(str, TASK_MEMORY_GB))}")
        if memory_gb not in TASK_MEMORY_GB[cores]:
            offered = TASK_MEMORY_GB[cores]
            steps = "" if offered.step == 1 else f" in steps of {offered.step}"
            between = f"between {offered[0]} and {offered[-1]}{steps}"
            raise ValueError(f"store_memory: {memory_gb} must be {between} with store_cpu={cores}")
        least_gib = VOLUME_GIB_PER_PROCESS_MIN * cores
        if not least_gib <= volume_gib <= VOLUME_GIB_MAX:
            raise ValueError(f"volume_gib: {volume_gib} must be between {least_gib} and {VOLUME_GIB_MAX}")
        return replace(
            self,
            stores_per_zone=stores_per_zone,
            cpu_units=cores * _CPU_UNITS_PER_CORE,
            memory_mb=memory_gb * 1024,
            volume_gib=volume_gib,
        )

    @property
    def cores(self) -> int:
        return self.cpu_units // _CPU_UNITS_PER_CORE

    @property
    def memory_gb(self) -> int:
        return self.memory_mb // 1024

    @property
    def processes(self) -> int:
        """One for each core of a task."""
        return max(1, self.cores)

    @property
    def wire_ports(self) -> tuple[int, int]:
        """The first and the last."""
        return self.wire_port, self.wire_port + self.processes - 1

    @property
    def health_ports(self) -> tuple[int, int]:
        """The first and the last; the task itself asks there, and a scraper of metrics if the deployment lets it."""
        return self.health_port, self.health_port + self.processes - 1

    @property
    def replica_ports(self) -> tuple[int, int]:
        """The first and the last; only stores connect to them."""
        return self.replica_port, self.replica_port + self.processes - 1

    @property
    def volume_iops(self) -> int:
        """What gp3 includes, or more with many processes."""
        return max(_IOPS_INCLUDED, _IOPS_PER_PROCESS * self.processes)

    @property
    def volume_throughput_mib_s(self) -> int:
        """What gp3 includes, for each process."""
        return min(_THROUGHPUT_MAX_MIB_S, _THROUGHPUT_INCLUDED_MIB_S * self.processes)

    def copies_in(self, zones: int) -> int:
        """The copies that a deployment in so many zones keeps unless it is told otherwise."""
        return self.copies if zones >= self.copies else 1


SEGMENT_STORES = SegmentStoreService()

LARGEST_STORES = replace(SEGMENT_STORES, cpu_units=max(TASK_MEMORY_GB) * _CPU_UNITS_PER_CORE)
"""Their ports are open in every deployment, so that stores of two sizes reach each other while the size changes."""


class GrpcBridgeService(msgspec.Struct, frozen=True):
    """The tasks of the bridge. Each of them serves all calls; two are in different zones, so that one may end."""

    service: str = "headrace-grpc-bridge"
    """The name of the ECS service. That for clients outside the VPC begins with it."""
    program: str = "headrace.bridge"
    probe: str = "headrace.bridge.health"
    tasks: int = 2
    tasks_max: int = 6
    port: int = 9090
    health_port: int = 9091
    cpu_units: int = 256
    memory_mb: int = 512
    stop_timeout_s: int = 120
    """The longest that Fargate allows."""
    drain_s: int = 70
    """Longer than the age of a connection, so that all clients are gone by then."""
    stop_deadline_s: int = 40
    """For the calls that are running after that."""
    grants: tuple[Grant, ...] = (
        "metadata:read",
        "metadata:write",
        "requests:send",
        "tables:send",
        "commits:send",
        "aborts:send",
        "token-keys:read",
    )


GRPC_BRIDGE = GrpcBridgeService()


class ExternalAccess(msgspec.Struct, frozen=True):
    """A listener for each process of a store that may run at a time, and one for the bridge."""

    first_port: int = SEGMENT_STORES.wire_port
    bridge_port: int = GRPC_BRIDGE.port
    idle_timeout_s: int = 6_000
    """The longest of a listener for TCP. Pravega's Java client is silent for six minutes."""
    listeners_max: int = 50
    """AWS's quota of a load balancer."""
    group_prefix: str = "headrace-port-"
    """Begins the name of the target group of a port."""

    def group_name(self, port: int) -> str:
        """The name of the target group of a port."""
        return f"{self.group_prefix}{port}"

    def slots(self, size: SegmentStoreService) -> int:
        """The ports of a zone: during a deployment the stores of before and of now run together."""
        return 2 * size.stores_per_zone * size.processes

    def ports(self, index: int, size: SegmentStoreService) -> range:
        """The ports of the stores in zone number `index`."""
        slots = self.slots(size)
        return range(self.first_port + index * slots, self.first_port + (index + 1) * slots)


EXTERNAL_ACCESS = ExternalAccess()
