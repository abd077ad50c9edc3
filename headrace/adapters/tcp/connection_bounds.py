"""How many connections a process accepts: in total, and from one address.

The bound of an address keeps one client from taking all connections. Some connections are reserved for networks of the
deployment's own functions, so that streams can still be created, sealed and scaled when clients have taken the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

RESERVED_CONNECTIONS: Final = 64
"""Connections of reserved networks only; with few connections in total an eighth of them."""

_SHARE_OF_AN_ADDRESS: Final = 4

Network = IPv4Network | IPv6Network


class Bound(StrEnum):
    """The bound that a refused connection would exceed."""

    TOTAL = "total"
    ADDRESS = "address"


class ConnectionBounds:
    """Counts open connections by address. `per_address_max` None: a quarter of `total_max`."""

    def __init__(
        self, total_max: int, per_address_max: int | None = None, reserved_networks: Sequence[Network] = ()
    ) -> None:
        self.total_max = total_max
        self.per_address_max = per_address_max or max(1, total_max // _SHARE_OF_AN_ADDRESS)
        self._networks = tuple(reserved_networks)
        self._by_address: Counter[str] = Counter()
        self.total = 0

    def exceeded_by(self, address: str) -> Bound | None:
        """The bound that one more connection from `address` would exceed; None if it may be opened."""
        reserved = min(RESERVED_CONNECTIONS, self.total_max // 8) if self._networks else 0
        if self.total >= self.total_max or (self.total >= self.total_max - reserved and not self._is_reserved(address)):
            return Bound.TOTAL
        return Bound.ADDRESS if self._by_address[address] >= self.per_address_max else None

    def opened(self, address: str) -> None:
        self._by_address[address] += 1
        self.total += 1

    def closed(self, address: str) -> None:
        self._by_address[address] -= 1
        self.total -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _is_reserved(self, address: str) -> bool:
        try:
            return any(ip_address(address) in network for network in self._networks)
        except ValueError:  # the peer has no address any more
            return False
