"""Outbound rules as a part of a security group.

The CDK makes a resource of its own of a rule whose peer is a group or a prefix list. A group that has only such rules
keeps the rule that EC2 gives each group, which lets everything out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import aws_ec2 as ec2


@dataclass(frozen=True, slots=True)
class Way:
    """A way out: to a security group or a prefix list, on TCP ports from `first` to `last`."""

    first: int
    last: int
    description: str
    group: str | None = None
    prefix_list: str | None = None


def let_out(group: ec2.SecurityGroup, ways: Sequence[Way]) -> None:
    """Make these the rules in the group itself. The CDK's are in addition to them."""
    resource = group.node.default_child
    if not isinstance(resource, ec2.CfnSecurityGroup):
        raise TypeError(f"{group.node.path} is not a security group of this app")
    resource.security_group_egress = [
        ec2.CfnSecurityGroup.EgressProperty(
            ip_protocol="tcp",
            from_port=way.first,
            to_port=way.last,
            description=way.description,
            destination_security_group_id=way.group,
            destination_prefix_list_id=way.prefix_list,
        )
        for way in ways
    ]
