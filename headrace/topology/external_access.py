"""The load balancer through which clients outside the network reach segment stores and the gRPC bridge."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.topology.grpc_bridge import GRPC_BRIDGE
from headrace.topology.segment_store_service import SEGMENT_STORES, SegmentStoreService


@dataclass(frozen=True, slots=True)
class ExternalAccess:
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
