"""The network of the segment stores: who may open the wire port, and what the stores can reach.

Stores live in subnets without a route to the internet. They reach S3 and DynamoDB through gateway endpoints, which are
free, and what Fargate needs to start a task (ECR, logs, Secrets Manager) and functions need to queue work (SQS) through
interface endpoints. Those cost about $110 a month in three zones; public subnets would save $99 of it, one NAT gateway
$74, but then a store would have a public address, or no zone could start one while the zone of the gateway is down.
Storage of record deserves neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from headrace import topology
from headrace.topology.services import GRPC_BRIDGE
from infra.constructs import deployed_network
from infra.constructs.deployed_network import DeployedNetwork
from infra.constructs.endpoint_policies import (
    client_objects,
    pull_images,
    read_secrets,
    store_objects,
    use_queues,
    use_table,
    write_logs,
)
from infra.constructs.inline_egress import Way, let_out
from infra.settings import EXTERNAL_SCHEMES, Settings

_HTTPS_PORT = 443
_HTTPS = ec2.Port.tcp(_HTTPS_PORT)
_WIRE_PORTS = ec2.Port.tcp_range(*topology.LARGEST_STORES.wire_ports)
_REPLICA_PORTS = ec2.Port.tcp_range(*topology.LARGEST_STORES.replica_ports)
_METRICS_PORTS = ec2.Port.tcp_range(*topology.LARGEST_STORES.health_ports)
_BRIDGE_PORT = ec2.Port.tcp(GRPC_BRIDGE.port)
_STORES, _CLIENTS, _PUBLIC = "stores", "clients", "public"

_Endpoints = Mapping[str, tuple[ec2.InterfaceVpcEndpointAwsService, Callable[[Construct], list[iam.PolicyStatement]]]]
_INTERFACE_ENDPOINTS: _Endpoints = {
    "EcrApi": (ec2.InterfaceVpcEndpointAwsService.ECR, pull_images),
    "EcrDocker": (ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER, pull_images),
    "Logs": (ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS, write_logs),
    "Sqs": (ec2.InterfaceVpcEndpointAwsService.SQS, use_queues),
    "Secrets": (ec2.InterfaceVpcEndpointAwsService.SECRETS_MANAGER, read_secrets),
}
"""By the name of the construct: the service, and what its policy allows."""


class StoreNetwork(Construct):
    """VPC, subnets, endpoints and security groups. The wire port opens to two groups only: functions and clients.

    Replica ports open to stores only.

    What stores need does not depend on the settings `copies` and `tokens` nor on their size, and the groups of the
    bridge are always there. The network is deployed before the stores: their tasks of before still run in it, and may
    be started again when a deployment is rolled back.

    Every endpoint has a policy: credentials of another account that reach a store or function are of no use there.
    """

    def __init__(self, scope: Construct, id_: str, settings: Settings, lists: ServiceLists) -> None:
        super().__init__(scope, id_)
        self.has_client_subnets = settings.spark_job
        self._has_public_balancer = _has_public_balancer(settings)
        self._lists = lists
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(settings.vpc_cidr),
            availability_zones=_zones(settings),
            subnet_configuration=_subnets(settings),
            nat_gateways=1 if settings.spark_job else 0,
            restrict_default_security_group=False,  # nothing joins the default group; restricting needs a function
        )
        self.stores_group = self._group("Stores", "Segment stores")
        self.functions_group = self._group("Functions", "Lambda functions that reach segment stores")
        self.clients_group = self._group("Clients", "Writers and readers of streams", closed=False)
        self.bridge_group = self._group("Bridge", "gRPC bridge")
        self.balancer_group = self._group("Balancer", "Load balancer of the gRPC bridge")
        self._open_wire_ports()
        self._open_bridge()
        self.stores_group.add_ingress_rule(self.stores_group, _REPLICA_PORTS, "log entries from other stores")
        self.stores_group.add_egress_rule(self.stores_group, _REPLICA_PORTS, "log entries to other stores")
        if settings.metrics_from is not None:
            scraper = metrics_peer(settings.metrics_from)
            self.stores_group.add_ingress_rule(scraper, _METRICS_PORTS, "metrics of segment stores")
        self._add_endpoints()
        self._log_rejected_traffic()
        self._seen: dict[str, DeployedNetwork] = {}
        deployed_network.publish(self, self._published())

    def seen_from(self, scope: Construct) -> DeployedNetwork:
        """The network as the stack of `scope` sees it, which is deployed later."""
        stack = cdk.Stack.of(scope)
        if stack.node.path not in self._seen:
            subnets = self._subnets(self.store_subnets)
            self._seen[stack.node.path] = DeployedNetwork(
                stack,
                cidrs=[subnet.ipv4_cidr_block for subnet in subnets],
                zones=[subnet.availability_zone for subnet in subnets],
                client_cidrs=[subnet.ipv4_cidr_block for subnet in self._subnets(self.client_subnets)]
                if self.has_client_subnets
                else [],
            )
        return self._seen[stack.node.path]

    def _published(self) -> dict[str, str]:
        """What other stacks need to know, by the names of parameters."""
        values = {
            deployed_network.VPC: self.vpc.vpc_id,
            deployed_network.STORES_GROUP: self.stores_group.security_group_id,
            deployed_network.FUNCTIONS_GROUP: self.functions_group.security_group_id,
            deployed_network.CLIENTS_GROUP: self.clients_group.security_group_id,
            deployed_network.BRIDGE_GROUP: self.bridge_group.security_group_id,
            deployed_network.BALANCER_GROUP: self.balancer_group.security_group_id,
        }
        for index, subnet in enumerate(self._subnets(self.store_subnets)):
            values[deployed_network.store_subnet(index)] = subnet.subnet_id
            values[deployed_network.store_zone(index)] = zone_id(subnet)
        if self.has_client_subnets:
            values[deployed_network.CLIENT_SUBNET] = self._subnets(self.client_subnets)[0].subnet_id
        if self._has_public_balancer:
            for index, subnet in enumerate(self._subnets(ec2.SubnetSelection(subnet_group_name=_PUBLIC))):
                values[deployed_network.public_subnet(index)] = subnet.subnet_id
        return values

    def _subnets(self, selected: ec2.SubnetSelection) -> list[ec2.ISubnet]:
        return self.vpc.select_subnets(subnet_group_name=selected.subnet_group_name).subnets

    @property
    def store_subnets(self) -> ec2.SubnetSelection:
        """One subnet per zone, without a route to the internet."""
        return ec2.SubnetSelection(subnet_group_name=_STORES)

    @property
    def client_subnets(self) -> ec2.SubnetSelection:
        """One subnet per zone with a route to the internet, where the HTTP API is; only with the Spark job."""
        if not self.has_client_subnets:
            raise ValueError("this network has no client subnets: deploy with -c spark_job=true")
        return ec2.SubnetSelection(subnet_group_name=_CLIENTS)

    def _group(self, name: str, description: str, *, closed: bool = True) -> ec2.SecurityGroup:
        return ec2.SecurityGroup(
            self, name, vpc=self.vpc, description=f"{description} (Headrace)", allow_all_outbound=not closed
        )

    def _open_wire_ports(self) -> None:
        openers = (
            (self.functions_group, "functions"),
            (self.clients_group, "clients"),
            (self.bridge_group, "the gRPC bridge"),
        )
        for group, who in openers:
            self.stores_group.add_ingress_rule(group, _WIRE_PORTS, f"wire protocol from {who}")
        for group in (self.functions_group, self.bridge_group):
            group.add_egress_rule(self.stores_group, _WIRE_PORTS, "wire protocol to segment stores")

    def _open_bridge(self) -> None:
        """Clients reach the bridge through its load balancer only."""
        self.balancer_group.add_ingress_rule(self.clients_group, _BRIDGE_PORT, "gRPC from clients")
        port, bridge = GRPC_BRIDGE.port, self.bridge_group.security_group_id
        let_out(self.balancer_group, [Way(port, port, "gRPC to the bridge", group=bridge)])
        self.bridge_group.add_ingress_rule(self.balancer_group, _BRIDGE_PORT, "gRPC from the load balancer")

    def _add_endpoints(self) -> None:
        s3, dynamodb = ec2.GatewayVpcEndpointAwsService.S3, ec2.GatewayVpcEndpointAwsService.DYNAMODB
        stores = [self.store_subnets]
        _allow(self.vpc.add_gateway_endpoint("S3", service=s3, subnets=stores), store_objects(self))
        _allow(self.vpc.add_gateway_endpoint("DynamoDb", service=dynamodb, subnets=stores), use_table(self))
        if self.has_client_subnets:
            # History is read from S3: through the NAT gateway each GB of it would cost $0.045.
            clients = self.vpc.add_gateway_endpoint("ClientsS3", service=s3, subnets=[self.client_subnets])
            _allow(clients, client_objects(self))
        endpoints_group = self._group("Endpoints", "Interface endpoints")
        endpoints_group.add_ingress_rule(self.stores_group, _HTTPS, "AWS APIs from segment stores")
        endpoints_group.add_ingress_rule(self.functions_group, _HTTPS, "AWS APIs from functions")
        endpoints_group.add_ingress_rule(self.bridge_group, _HTTPS, "AWS APIs from the gRPC bridge")
        for group in (self.functions_group, self.stores_group, self.bridge_group):
            group.add_egress_rule(endpoints_group, _HTTPS, "AWS APIs through interface endpoints")
            let_out(
                group,
                [
                    Way(_HTTPS_PORT, _HTTPS_PORT, f"{name} through its gateway endpoint", prefix_list=prefix_list)
                    for name, prefix_list in (("S3", self._lists.s3), ("DynamoDB", self._lists.dynamodb))
                ],
            )
        for name, (service, statements) in _INTERFACE_ENDPOINTS.items():
            endpoint = self.vpc.add_interface_endpoint(
                name, service=service, subnets=self.store_subnets, security_groups=[endpoints_group], open=False
            )
            _allow(endpoint, statements(self))

    def _log_rejected_traffic(self) -> None:
        """Rejected traffic only: what is accepted is event data, and logging it would cost like storing it."""
        log_group = logs.LogGroup(
            self, "RejectedTraffic", retention=logs.RetentionDays.ONE_MONTH, removal_policy=cdk.RemovalPolicy.DESTROY
        )
        self.vpc.add_flow_log(
            "Rejected",
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(log_group),
            traffic_type=ec2.FlowLogTrafficType.REJECT,
        )


class ServiceLists(Protocol):
    """The ids of the prefix lists of the services that have gateway endpoints."""

    s3: str
    dynamodb: str


def metrics_peer(source: str) -> ec2.IPeer:
    """Who may read the metrics of stores: a security group by its id, or a network."""
    return ec2.Peer.security_group_id(source) if source.startswith("sg-") else ec2.Peer.ipv4(source)


def zone_id(subnet: ec2.ISubnet) -> str:
    """The id of the subnet's zone ("use1-az1"): unlike its name it means the same place in every account."""
    resource = subnet.node.default_child
    if not isinstance(resource, ec2.CfnSubnet):
        raise TypeError(f"{subnet.node.path} is not a subnet of this app")
    return resource.attr_availability_zone_id


def _allow(endpoint: ec2.GatewayVpcEndpoint | ec2.InterfaceVpcEndpoint, statements: list[iam.PolicyStatement]) -> None:
    """Replace the default policy of an endpoint, which lets everything through."""
    for statement in statements:
        endpoint.add_to_policy(statement)


def _zones(settings: Settings) -> list[str]:
    """The chosen zones, or as many as wanted of those that the Region names first: known only when it is deployed."""
    if settings.zones:
        return list(settings.zones)
    return [cdk.Fn.select(index, cdk.Fn.get_azs()) for index in range(settings.zone_count)]


def _subnets(settings: Settings) -> list[ec2.SubnetConfiguration]:
    """Store subnets come first, so that adding the Spark job moves no address of theirs."""
    subnets = [ec2.SubnetConfiguration(name=_STORES, subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=25)]
    public = ec2.SubnetConfiguration(
        name=_PUBLIC, subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=28, map_public_ip_on_launch=False
    )
    if settings.spark_job:
        egress = ec2.SubnetType.PRIVATE_WITH_EGRESS
        subnets += [ec2.SubnetConfiguration(name=_CLIENTS, subnet_type=egress, cidr_mask=24), public]
    elif _has_public_balancer(settings):
        # The addresses of the client subnets stay free, so that adding the Spark job moves no load balancer.
        isolated = ec2.SubnetType.PRIVATE_ISOLATED
        reserved = ec2.SubnetConfiguration(name=_CLIENTS, subnet_type=isolated, cidr_mask=24, reserved=True)
        subnets += [reserved, public]
    return subnets


def _has_public_balancer(settings: Settings) -> bool:
    """Whether a load balancer is reached from the internet."""
    return settings.external_domain is not None and settings.external_scheme == EXTERNAL_SCHEMES[0]
