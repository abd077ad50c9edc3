"""The versions of the protocol between replicas that a store speaks.

A release speaks the version of the release before, so that stores of both form one log during a deployment. Stores
without a common version must not share a log: none of them could read the copies of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.model.errors import InvalidRequestError

VERSION_MAX: Final = (1 << 16) - 1
"""HELLO has two bytes for a version."""


@dataclass(frozen=True, slots=True)
class ProtocolVersions:
    """All versions from `low` to `high`.

    Raises:
        InvalidRequestError: `low` is less than 1 or more than `high`, or `high` is more than VERSION_MAX.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= VERSION_MAX:
            raise InvalidRequestError(
                f"there are no protocol versions from {self.low} to {self.high}: they are numbers from 1 to "
                f"{VERSION_MAX}, the lowest one first"
            )

    def shared(self, other: ProtocolVersions) -> ProtocolVersions | None:
        """The versions that both speak; None without any."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return ProtocolVersions(low, high) if low <= high else None

    def __str__(self) -> str:
        return f"version {self.low}" if self.low == self.high else f"versions {self.low} to {self.high}"


FIRST_PROTOCOL: Final = ProtocolVersions(1, 1)
"""What a store speaks whose lease says nothing else."""

REPLICA_PROTOCOL: Final = ProtocolVersions(1, 1)
"""What this release speaks."""
