"""The segment stores of a deployment: one service, one task per availability zone."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.topology.kinds import Grant

_CPU_UNITS_PER_CORE = 1024


@dataclass(frozen=True, slots=True)
class SegmentStoreService:
    """The segment stores of one deployment: one ECS service with one task per availability zone."""

    module: str = "segmentstore_fargate"
    stores: int = 3
    wire_port: int = 12345
    health_port: int = 12545
    """The first of as many ports as there are processes, like `wire_port`."""
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
    )

    @property
    def processes(self) -> int:
        """One for each core of a task."""
        return max(1, self.cpu_units // _CPU_UNITS_PER_CORE)

    @property
    def wire_ports(self) -> tuple[int, int]:
        """The first and the last."""
        return self.wire_port, self.wire_port + self.processes - 1

    @property
    def health_ports(self) -> tuple[int, int]:
        """The first and the last; the task itself asks there, and a scraper of metrics if the deployment lets it."""
        return self.health_port, self.health_port + self.processes - 1


SEGMENT_STORES = SegmentStoreService()
