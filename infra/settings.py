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

ACCOUNT_CONCURRENCY = 1_000
"""Lambda's usual quota of executions at once in a Region. New accounts start with 10."""
UNRESERVED_CONCURRENCY_MIN = 100
"""What Lambda insists on keeping for functions without a reservation."""

_ZONE_NAME = re.compile(r"[a-z]{2}(-[a-z]+)+-\d[a-z]")
_SECURITY_GROUP = re.compile(r"sg-[0-9a-f]{8,17}")
_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of one deployment.

    `zones` are availability zone names, one segment store each; empty means the Region's first ones. `spark_job` adds
    the Glue job and the NAT gateway that it needs. `keep_data` keeps table and bucket when their stack is deleted.
    `account_concurrency` is the account's quota of Lambda executions at once, of which some are reserved if it allows.
    `metrics_from` is a security group or an IPv4 network that may read the metrics of stores.
    """

    zones: tuple[str, ...] = ()
    vpc_cidr: str = DEFAULT_VPC_CIDR
    spark_job: bool = True
    keep_data: bool = True
    alarm_email: str | None = None
    account_concurrency: int = ACCOUNT_CONCURRENCY
    metrics_from: str | None = None

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
        if self.metrics_from is not None:
            _check_metrics_source(self.metrics_from)
        if self.account_concurrency < 1:
            raise ValueError(f"account_concurrency: {self.account_concurrency} must be at least 1")

    @property
    def zone_count(self) -> int:
        """Zones, and so segment stores, of this deployment."""
        return len(self.zones) or topology.SEGMENT_STORES.stores

    def reserved_concurrency(self, declared: topology.Function) -> int | None:
        """Executions to reserve for a function; None where it needs none, or where Lambda would refuse to reserve."""
        reserved = sum(function.reserved_concurrency for function in topology.FUNCTIONS)
        if self.account_concurrency - reserved < UNRESERVED_CONCURRENCY_MIN:
            return None
        return declared.reserved_concurrency or None

    @classmethod
    def from_context(cls, node: Node) -> Settings:
        """Read `-c zones=a,b,c -c vpc_cidr=... -c spark_job=false -c keep_data=false -c alarm_email=...
        -c account_concurrency=... -c metrics_from=...`."""
        zones = str(node.try_get_context("zones") or "")
        return cls(
            zones=tuple(zone.strip() for zone in zones.split(",") if zone.strip()),
            vpc_cidr=str(node.try_get_context("vpc_cidr") or DEFAULT_VPC_CIDR),
            spark_job=_switch(node, "spark_job"),
            keep_data=_switch(node, "keep_data"),
            alarm_email=node.try_get_context("alarm_email"),
            account_concurrency=_number(node, "account_concurrency", ACCOUNT_CONCURRENCY),
            metrics_from=node.try_get_context("metrics_from"),
        )


def _check_metrics_source(source: str) -> None:
    """Refuse what is neither a security group nor a network, and a network that anyone may be in."""
    if _SECURITY_GROUP.fullmatch(source):
        return
    try:
        network = ipaddress.IPv4Network(source)
    except ValueError as error:
        raise ValueError(
            f"metrics_from: {source!r} is neither a security group nor an IPv4 network: {error}"
        ) from error
    if not network.is_private:
        raise ValueError(f"metrics_from: {source} is not a private network")


def _number(node: Node, name: str, default: int) -> int:
    """A whole number of at least 0; `default` if the context does not say."""
    value = node.try_get_context(name)
    text = str(default if value is None else value)
    if not text.isdecimal():
        raise ValueError(f"{name}: {value!r} must be a whole number")
    return int(text)


def _switch(node: Node, name: str) -> bool:
    """True unless the context says false."""
    value = node.try_get_context(name)
    text = "true" if value is None else str(value).lower()
    if text not in _SWITCH:
        raise ValueError(f"{name}: {value!r} must be true or false")
    return _SWITCH[text]
