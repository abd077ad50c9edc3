"""The network stack: where segment stores listen, and the groups that may reach them."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from constructs import Construct

from infra.constructs.prefix_lists import PrefixLists
from infra.constructs.store_network import StoreNetwork
from infra.settings import Settings


class NetworkStack(cdk.Stack):
    """VPC, endpoints and security groups."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: network of the segment stores", **kwargs)
        lists = PrefixLists(self, "PrefixLists")
        self.network = StoreNetwork(self, "Network", settings, lists)
        cdk.CfnOutput(self, "VpcId", value=self.network.vpc.vpc_id)
        cdk.CfnOutput(
            self,
            "ClientSecurityGroupId",
            value=self.network.clients_group.security_group_id,
            description="Writers and readers in this VPC need this group to reach segment stores",
        )
