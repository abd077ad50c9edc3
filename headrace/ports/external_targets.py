"""The load balancer that clients outside the network connect to, as what keeps its targets sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A process that the load balancer passes connections to."""

    host: str
    port: int


class ExternalTargets(Protocol):
    """The targets of each port of the load balancer.

    Any call may raise UnavailableError or ThrottledError; a repetition does no harm.
    """

    def ports(self) -> list[int]:
        """The ports with a listener for stores, sorted."""
        ...

    def targets(self, port: int) -> dict[Target, bool]:
        """The targets of a port that are not being removed, and whether each is known to be unhealthy."""
        ...

    def add(self, port: int, target: Target) -> None:
        """Add a target; no effect if it is there."""
        ...

    def remove(self, port: int, targets: Iterable[Target]) -> None:
        """Remove targets; no effect on one that is not there."""
        ...
