"""What an operator may choose at `cdk deploy` with `-c name=value`; everything else is in headrace/topology/.

Context, not CloudFormation parameters: the number of zones decides how many services there are, and a synth without an
account must still know it. Refuses values that would fail late, in the middle of a deployment.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from constructs import Node

from headrace import topology

DEFAULT_VPC_CIDR = "10.73.0.0/16"
VPC_PREFIX_BITS_MAX = 20
"""The smallest network that still holds the subnets of all zones with room for clients (4,096 addresses)."""

_ZONE_NAME = re.compile(r"[a-z]{2}(-[a-z]+)+-\d[a-z]")
_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of one deployment.

    `zones` are availability zone names, one segment store each; empty means the Region's first ones. `spark_job` adds
    the Glue job and the NAT gateway that it needs. `keep_data` keeps table and bucket when their stack is deleted.
    """

    zones: tuple[str, ...] = ()
    vpc_cidr: str = DEFAULT_VPC_CIDR
    spark_job: bool = True
    keep_data: bool = True
    alarm_email: str | None = None

    def __post_init__(self) -> None:
        for zone in self.zones:
            if not _ZONE_NAME.fullmatch(zone):
                raise ValueError(f"zones: {zone!r} is not an availability zone name such as us-east-1a")
        if len(set(self.zones)) != len(self.zones):
            raise ValueError(f"zones: {', '.join(self.zones)} names a zone twice")
        network = ipaddress.IPv4Network(self.vpc_cidr)
        if not network.is_private or network.prefixlen > VPC_PREFIX_BITS_MAX or network.prefixlen < 16:
            raise ValueError(f"vpc_cidr: {self.vpc_cidr} must be private and between /16 and /{VPC_PREFIX_BITS_MAX}")
        if self.alarm_email is not None and "@" not in self.alarm_email:
            raise ValueError(f"alarm_email: {self.alarm_email!r} is not an address")

    @property
    def zone_count(self) -> int:
        """Zones, and so segment stores, of this deployment."""
        return len(self.zones) or topology.SEGMENT_STORES.stores

    @classmethod
    def from_context(cls, node: Node) -> Settings:
        """Read `-c zones=a,b,c -c vpc_cidr=... -c spark_job=false -c keep_data=false -c alarm_email=...`."""
        zones = str(node.try_get_context("zones") or "")
        return cls(
            zones=tuple(zone.strip() for zone in zones.split(",") if zone.strip()),
            vpc_cidr=str(node.try_get_context("vpc_cidr") or DEFAULT_VPC_CIDR),
            spark_job=_switch(node, "spark_job"),
            keep_data=_switch(node, "keep_data"),
            alarm_email=node.try_get_context("alarm_email"),
        )


def _switch(node: Node, name: str) -> bool:
    """True unless the context says false."""
    value = node.try_get_context(name)
    text = "true" if value is None else str(value).lower()
    if text not in _SWITCH:
        raise ValueError(f"{name}: {value!r} must be true or false")
    return _SWITCH[text]
