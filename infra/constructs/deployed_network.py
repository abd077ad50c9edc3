"""The network of the segment stores as the other stacks see it: by parameters with fixed names, and no export.

AWS chooses the ids of subnets and security groups, so the network's stack stores them in Systems Manager. The other
stacks have template parameters of these names, which CloudFormation reads again at every deployment. AWS refuses to
remove an export while a stack imports it, and so would refuse each change of the network that removes something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_servicediscovery as servicediscovery
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from headrace.certificate_names import DOMAIN
from infra.constructs.acknowledgements import acknowledge

NETWORK_PREFIX = "/headrace/network"
VPC = f"{NETWORK_PREFIX}/vpc"
STORES_GROUP = f"{NETWORK_PREFIX}/stores-group"
FUNCTIONS_GROUP = f"{NETWORK_PREFIX}/functions-group"
CLIENTS_GROUP = f"{NETWORK_PREFIX}/clients-group"
BRIDGE_GROUP = f"{NETWORK_PREFIX}/bridge-group"
BALANCER_GROUP = f"{NETWORK_PREFIX}/balancer-group"
CLIENT_SUBNET = f"{NETWORK_PREFIX}/client-subnet"
"""The first of the client subnets."""
EXTERNAL_BRIDGE_TARGETS = "/headrace/external/bridge-targets"
"""The target group of the bridge for clients outside."""
CONTROLLER_API_ID = "/headrace/controller-api/id"

NAMESPACE = "/headrace/certificates/namespace"
"""The id of the private DNS zone, in a deployment with TLS."""

NO_VPC_ID = "vpc-of-the-subnets"
NO_ROUTES_REASON = "Only the stack of the network adds routes to its subnets."


def store_subnet(index: int) -> str:
    """The name of the parameter with the id of the store subnet of zone number `index`."""
    return f"{NETWORK_PREFIX}/store-subnet-{index}"


def store_zone(index: int) -> str:
    """The name of the parameter with the id of that zone ("use1-az1")."""
    return f"{NETWORK_PREFIX}/store-zone-{index}"


def public_subnet(index: int) -> str:
    """The name of the parameter with the id of the public subnet of zone number `index`."""
    return f"{NETWORK_PREFIX}/public-subnet-{index}"


def publish(scope: Construct, values: Mapping[str, str], *, after: Construct | None = None) -> None:
    """Store values under the names of parameters, for stacks that are deployed later; `after` is complete before."""
    for name, value in values.items():
        id_ = "".join(part.title() for part in name.replace("/", "-").split("-"))
        parameter = ssm.StringParameter(scope, f"Parameter{id_}", parameter_name=name, string_value=value)
        if after is not None:
            parameter.node.add_dependency(after)


def published(scope: Construct, name: str) -> str:
    """The value that an earlier stack has stored under a name."""
    return ssm.StringParameter.value_for_string_parameter(scope, name)


def deployed_namespace(stack: cdk.Stack) -> servicediscovery.IPrivateDnsNamespace:
    """The private DNS zone as a later stack sees it; once in each stack."""
    id_ = published(stack, NAMESPACE)
    return servicediscovery.PrivateDnsNamespace.from_private_dns_namespace_attributes(
        stack,
        "Namespace",
        namespace_arn=stack.format_arn(service="servicediscovery", resource="namespace", resource_name=id_),
        namespace_id=id_,
        namespace_name=DOMAIN,
    )


class DeployedNetwork(Construct):
    """The network seen from one stack. `cidrs` and `zones` are those of the store subnets, in their order.

    `client_cidrs` are those of the client subnets, in the order of their zones; empty if there are none.
    """

    def __init__(
        self, stack: cdk.Stack, *, cidrs: Sequence[str], zones: Sequence[str], client_cidrs: Sequence[str]
    ) -> None:
        super().__init__(stack, "Network")
        self._cidrs, self._zones = list(cidrs), list(zones)
        self._client_cidrs = list(client_cidrs)
        acknowledge(self, "Annotation::@aws-cdk/aws-ec2:noSubnetRouteTableId", NO_ROUTES_REASON)

    @cached_property
    def vpc(self) -> ec2.IVpc:
        """The VPC, without its subnets."""
        return self._vpc("Vpc", published(self, VPC))

    @cached_property
    def vpc_of_subnets(self) -> ec2.IVpc:
        """For constructs that ask for a VPC and put only subnets and groups into the template.

        A template parameter with its id, which nothing uses, would be an error.
        """
        return self._vpc("VpcOfSubnets", NO_VPC_ID)

    def _vpc(self, id_: str, vpc_id: str) -> ec2.IVpc:
        return ec2.Vpc.from_vpc_attributes(self, id_, vpc_id=vpc_id, availability_zones=self._zones)

    @cached_property
    def store_subnets(self) -> list[ec2.ISubnet]:
        return [
            ec2.Subnet.from_subnet_attributes(
                self,
                f"Stores{index}",
                subnet_id=published(self, store_subnet(index)),
                availability_zone=zone,
                ipv4_cidr_block=cidr,
            )
            for index, (cidr, zone) in enumerate(zip(self._cidrs, self._zones, strict=True))
        ]

    @cached_property
    def public_subnets(self) -> list[ec2.ISubnet]:
        """One per zone with a route to and from the internet; only if something in them needs it."""
        return [
            ec2.Subnet.from_subnet_attributes(
                self, f"Public{index}", subnet_id=published(self, public_subnet(index)), availability_zone=zone
            )
            for index, zone in enumerate(self._zones)
        ]

    @property
    def zones(self) -> list[str]:
        """The names of the zones of the store subnets."""
        return self._zones

    def zone_networks(self) -> list[str]:
        """The subnets of stores and functions, and of clients, with their zones: "use1-az1=10.0.0.0/24"."""
        ids = self.zone_ids
        pairs = [*zip(ids, self._cidrs, strict=True)]
        if self._client_cidrs:
            pairs += zip(ids, self._client_cidrs, strict=True)
        return [f"{zone}={cidr}" for zone, cidr in pairs]

    @property
    def zone_ids(self) -> list[str]:
        """The ids of the zones of the store subnets."""
        return [published(self, store_zone(index)) for index in range(len(self._zones))]

    @cached_property
    def stores_group(self) -> ec2.ISecurityGroup:
        return self._group("StoresGroup", STORES_GROUP)

    @cached_property
    def functions_group(self) -> ec2.ISecurityGroup:
        return self._group("FunctionsGroup", FUNCTIONS_GROUP)

    @cached_property
    def clients_group(self) -> ec2.ISecurityGroup:
        return self._group("ClientsGroup", CLIENTS_GROUP)

    @cached_property
    def bridge_group(self) -> ec2.ISecurityGroup:
        return self._group("BridgeGroup", BRIDGE_GROUP)

    @cached_property
    def balancer_group(self) -> ec2.ISecurityGroup:
        return self._group("BalancerGroup", BALANCER_GROUP)

    @cached_property
    def client_subnet(self) -> ec2.ISubnet:
        """The first of the client subnets, which a network has only with the Spark job."""
        return ec2.Subnet.from_subnet_attributes(
            self, "Clients", subnet_id=published(self, CLIENT_SUBNET), availability_zone=self._zones[0]
        )

    def _group(self, id_: str, name: str) -> ec2.ISecurityGroup:
        """The security group of a parameter. Only the network's stack adds rules to it."""
        return ec2.SecurityGroup.from_security_group_id(self, id_, published(self, name), mutable=False)
