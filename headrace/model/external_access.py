"""The addresses of segment stores for clients outside the deployment's network, and which ports stores may take.

A load balancer outside has a listener for each port, and passes the bytes through to one store process. A store takes a
port of its zone before it registers, and keeps it while its lease lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from headrace.model.errors import InvalidRequestError
from headrace.model.tls_modes import is_tls_name

NETWORK_VARIABLE: Final = "HEADRACE_NETWORK"
"""Names the network of a client, or that of the clients of a bridge."""
NetworkName = Literal["vpc", "external"]

EXTERNAL_PORT_MAX: Final = 65_535
EXTERNAL_PORTS_MAX: Final = 50
"""Of one store: as many listeners as a load balancer may have."""


class Network(StrEnum):
    """From where a client connects to segment stores."""

    VPC = "vpc"
    """The network of the stores, and networks that are peered with it."""
    EXTERNAL = "external"
    """Any other: clients connect to the load balancer of `external_domain`."""


@dataclass(frozen=True, slots=True)
class ExternalAddress:
    """Clients connect to `host` and `port`, and verify `name` in the store's certificate.

    Raises:
        InvalidRequestError: the name is not a DNS name in lower case, or there is no such port.
    """

    name: str
    port: int
    host: str = ""
    """Empty: the name."""

    def __post_init__(self) -> None:
        if not is_tls_name(self.name):
            raise InvalidRequestError(f"{self.name[:300]!r} is not a DNS name in lower case")
        if not 1 <= self.port <= EXTERNAL_PORT_MAX:
            raise InvalidRequestError(f"{self.port} is not a port from 1 to {EXTERNAL_PORT_MAX}")

    @property
    def reached_at(self) -> str:
        """The host that clients connect to."""
        return self.host or self.name


@dataclass(frozen=True, slots=True)
class ExternalOffer:
    """What a store process may announce: its name outside, and one of the `ports` that no other process has."""

    name: str
    ports: range
    host: str = ""

    def address(self, port: int) -> ExternalAddress:
        return ExternalAddress(self.name, port, self.host)


def parse_network(name: str) -> Network:
    """Raises InvalidRequestError: the value of NETWORK_VARIABLE is not one."""
    if name not in tuple(Network):
        raise InvalidRequestError(f"{NETWORK_VARIABLE} is {name[:40]!r}, expected {' or '.join(Network)}")
    return Network(name)
