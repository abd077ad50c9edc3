"""Availability zones by their ids, and which zone an address is in: a subnet of AWS is in one zone.

Clients, stores and templates use this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import combinations
from typing import Final

LOCAL_ZONE: Final = "local"
"""Stores with this zone are not in a real one: each of them counts as a zone of its own."""

UNKNOWN_ZONE: Final = "unknown"
"""Of an address that no network has."""

ZONE_NETWORKS_MAX: Final = 256

_ZONE_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def is_zone_id(text: str) -> bool:
    """Whether a text can be the id of an availability zone ("use1-az1")."""
    return _ZONE_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ZoneNetworks:
    """Networks with their zones: `zones[n]` is that of `networks[n]`. No two networks overlap."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    zones: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ZoneNetworks:
        """Parses "use1-az1=10.0.0.0/25,use1-az2=10.0.0.128/25"; an empty text has no networks.

        Raises:
            ValueError: an entry is not a zone and a network, there are too many, or two networks overlap.
        """
        entries = [entry.strip() for entry in text.split(",") if entry.strip()]
        if len(entries) > ZONE_NETWORKS_MAX:
            raise ValueError(f"{len(entries)} networks of zones: at most {ZONE_NETWORKS_MAX} are allowed")
        networks: list[IPv4Network | IPv6Network] = []
        zones: list[str] = []
        for entry in entries:
            zone, _, network = entry.partition("=")
            try:
                networks.append(ip_network(network))
            except ValueError as error:
                raise ValueError(f"{entry[:100]!r} is not like use1-az1=10.0.0.0/24: {error}") from error
            if not is_zone_id(zone):
                raise ValueError(f"{entry[:100]!r} is not like use1-az1=10.0.0.0/24: no id of a zone")
            zones.append(zone)
        for earlier, later in combinations(networks, 2):
            if earlier.version == later.version and earlier.overlaps(later):
                raise ValueError(f"the networks {earlier} and {later} of zones overlap")
        return cls(tuple(networks), tuple(zones))

    def zone_of(self, address: str) -> str:
        """The zone of an address, UNKNOWN_ZONE if no network has it."""
        try:
            parsed = ip_address(address)
        except ValueError:  # the peer has no address any more
            return UNKNOWN_ZONE
        known = zip(self.networks, self.zones, strict=True)
        return next((zone for network, zone in known if parsed in network), UNKNOWN_ZONE)
