"""The gRPC bridge of a deployment: one ECS service in all zones, behind a load balancer."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.topology.kinds import Grant


@dataclass(frozen=True, slots=True)
class GrpcBridgeService:
    """The tasks of the bridge. Each of them serves all calls; two are in different zones, so that one may end."""

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
