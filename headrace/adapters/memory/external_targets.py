"""`ports.external_targets.ExternalTargets` in memory."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.ports.external_targets import Target


class MemoryExternalTargets:
    """A load balancer with listeners at `ports`. `unhealthy` are the targets that fail its health checks."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._targets: dict[int, set[Target]] = {port: set() for port in ports}
        self.unhealthy: set[Target] = set()

    def ports(self) -> list[int]:
        return sorted(self._targets)

    def targets(self, port: int) -> dict[Target, bool]:
        return {target: target in self.unhealthy for target in self._targets[port]}

    def add(self, port: int, target: Target) -> None:
        self._targets[port].add(target)

    def remove(self, port: int, targets: Iterable[Target]) -> None:
        self._targets[port] -= set(targets)
