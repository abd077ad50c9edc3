"""The stack for clients outside the network: a load balancer, its names, and the function that keeps its targets.

Only with external_domain. The load balancer passes TCP through, so TLS ends in the stores and in the bridge, which have
certificates for the names. It has a listener for each process of a store that may run at a time: a client must reach
the process that has its segment, and no other one.

ECS registers the tasks of the bridge, which are all alike. The function registers the stores, as their leases say.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticloadbalancingv2 as balancing
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_route53 as route53
from constructs import Construct

from headrace import topology
from headrace.certificate_names import BRIDGE_LABEL, external_name, store_label
from headrace.topology.services import EXTERNAL_ACCESS, GRPC_BRIDGE
from infra.constructs import deployed_network
from infra.constructs.acknowledgements import acknowledge, acknowledge_wildcard
from infra.constructs.controller_function import AsynchronousLimits, ControllerFunction
from infra.constructs.inline_egress import Way, let_out
from infra.constructs.store_network import StoreNetwork
from infra.packaging import lambda_bundle
from infra.settings import EXTERNAL_SCHEMES, Settings

BALANCER_NAME = "headrace-external"
BRIDGE_DEREGISTRATION_S = 30
"""As of the load balancer within the network."""
HEALTH_INTERVAL_S = 10
PROMPT = AsynchronousLimits(cdk.Duration.minutes(5), retries=0)
"""The next call of the schedule is a minute later."""

ACCESS_LOG_REASON = "A load balancer that passes TCP through writes no access log: that is for listeners with TLS."
OPEN_REASON = "The setting external_from names the networks. All ports demand TLS, a token and rights in it."
TARGET_GROUPS_REASON = "Target groups get random ids: the statement covers those with the names of this stack."
DESCRIBE_REASON = "AWS defines no resource for actions that describe target groups and the health of their targets."


class ExternalAccessStack(cdk.Stack):
    """Load balancer, listeners and target groups, DNS names, and the function."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, network: StoreNetwork, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: access from outside the network", **kwargs)
        self._settings = settings
        self._seen = network.seen_from(self)
        self._vpc = self._seen.vpc
        group = self._group()
        is_public = settings.external_scheme == EXTERNAL_SCHEMES[0]
        self._balancer = balancing.NetworkLoadBalancer(
            self,
            "Balancer",
            load_balancer_name=BALANCER_NAME,
            vpc=self._vpc,
            vpc_subnets=ec2.SubnetSelection(
                subnets=self._seen.public_subnets if is_public else self._seen.store_subnets
            ),
            internet_facing=is_public,
            # A name of a zone leads to the store in it: the way to another zone would be paid for.
            cross_zone_enabled=False,
            security_groups=[group],
        )
        acknowledge(self._balancer, "AwsSolutions-ELB2", ACCESS_LOG_REASON)
        for index in range(settings.zone_count):
            for port in EXTERNAL_ACCESS.ports(index, settings.segment_stores):
                self._listen(f"Store{port}", port, self._store_targets(port))
            self._name(store_label(index), cdk.Fn.join(".", [self._seen.zones[index], self._dns_name]))
        if settings.grpc_bridge:
            tasks = self._bridge_targets()
            listener = self._listen("Bridge", EXTERNAL_ACCESS.bridge_port, tasks)
            self._name(BRIDGE_LABEL, self._dns_name)
            values = {deployed_network.EXTERNAL_BRIDGE_TARGETS: tasks.target_group_arn}
            deployed_network.publish(self, values, after=listener)
        self._keep_targets()

    @property
    def _dns_name(self) -> str:
        return self._balancer.load_balancer_dns_name

    def _group(self) -> ec2.SecurityGroup:
        """The group of the load balancer. Its rules are all in this stack, and so go with it."""
        group = ec2.SecurityGroup(
            self,
            "Group",
            vpc=self._vpc,
            description="Load balancer for clients outside (Headrace)",
            allow_all_outbound=False,
        )
        ports = [
            EXTERNAL_ACCESS.ports(index, self._settings.segment_stores) for index in range(self._settings.zone_count)
        ]
        outside = [(ec2.Port.tcp_range(ports[0].start, ports[-1].stop - 1), "wire protocol from outside")]
        wire_ports = ec2.Port.tcp_range(*self._settings.segment_stores.wire_ports)
        inside = [(self._seen.stores_group, wire_ports, "Stores", "wire protocol")]
        if self._settings.grpc_bridge:
            outside.append((ec2.Port.tcp(EXTERNAL_ACCESS.bridge_port), "gRPC from outside"))
            inside.append((self._seen.bridge_group, ec2.Port.tcp(GRPC_BRIDGE.port), "Bridge", "gRPC"))
        for cidr in self._settings.external_from:
            for port, what in outside:
                group.add_ingress_rule(ec2.Peer.ipv4(cidr), port, what)
        ways: list[Way] = []
        for peer, port, name, what in inside:
            rule = port.to_rule_json()
            ec2.CfnSecurityGroupIngress(
                self,
                f"To{name}",
                group_id=peer.security_group_id,
                source_security_group_id=group.security_group_id,
                ip_protocol=str(rule["ipProtocol"]),
                from_port=rule["fromPort"],
                to_port=rule["toPort"],
                description=f"{what} from the load balancer for clients outside",
            )
            ways.append(Way(rule["fromPort"], rule["toPort"], f"{what} to targets", group=peer.security_group_id))
        let_out(group, ways)
        acknowledge(group, "AwsSolutions-EC23", OPEN_REASON)
        return group

    def _listen(self, id_: str, port: int, group: balancing.NetworkTargetGroup) -> balancing.NetworkListener:
        listener = self._balancer.add_listener(
            id_,
            port=port,
            protocol=balancing.Protocol.TCP,
            tcp_idle_timeout=cdk.Duration.seconds(EXTERNAL_ACCESS.idle_timeout_s),
        )
        listener.add_target_groups("Targets", group)
        return listener

    def _store_targets(self, port: int) -> balancing.NetworkTargetGroup:
        """The one process of a store that has this port, if there is one."""
        group = self._targets(f"Targets{port}", EXTERNAL_ACCESS.group_name(port), topology.SEGMENT_STORES.wire_port)
        # Half of the ports have no target but during a deployment. The names must lead to the others all the same.
        group.set_attribute("target_group_health.dns_failover.minimum_healthy_targets.count", "off")
        # A store that is removed has ended.
        group.set_attribute("deregistration_delay.timeout_seconds", "0")
        group.set_attribute("deregistration_delay.connection_termination.enabled", "true")
        return group

    def _bridge_targets(self) -> balancing.NetworkTargetGroup:
        group = self._targets("BridgeTargets", f"{BALANCER_NAME}-bridge", GRPC_BRIDGE.port)
        group.set_attribute("load_balancing.cross_zone.enabled", "true")
        group.set_attribute("deregistration_delay.timeout_seconds", str(BRIDGE_DEREGISTRATION_S))
        # A task ends its connections itself, when their calls are answered.
        group.set_attribute("deregistration_delay.connection_termination.enabled", "false")
        return group

    def _targets(self, id_: str, name: str, port: int) -> balancing.NetworkTargetGroup:
        """A group without targets, which sees the addresses of clients: stores and bridge limit each of them."""
        return balancing.NetworkTargetGroup(
            self,
            id_,
            target_group_name=name,
            vpc=self._vpc,
            port=port,
            protocol=balancing.Protocol.TCP,
            target_type=balancing.TargetType.IP,
            preserve_client_ip=True,
            health_check=balancing.HealthCheck(
                protocol=balancing.Protocol.TCP, interval=cdk.Duration.seconds(HEALTH_INTERVAL_S)
            ),
        )

    def _name(self, label: str, target: str) -> None:
        domain, zone_id = self._settings.external_domain, self._settings.external_zone_id
        if domain is None or zone_id is None:
            raise ValueError("this stack needs external_domain and external_zone_id")
        route53.CfnRecordSet(
            self,
            f"Name-{label}",
            hosted_zone_id=zone_id,
            name=f"{external_name(label, domain)}.",
            type="A",
            alias_target=route53.CfnRecordSet.AliasTargetProperty(
                dns_name=target,
                hosted_zone_id=self._balancer.load_balancer_canonical_hosted_zone_id,
                # A zone without a healthy store has no other store with its segments, either.
                evaluate_target_health=False,
            ),
        )

    def _keep_targets(self) -> None:
        groups = self.format_arn(
            service="elasticloadbalancing", resource="targetgroup", resource_name=f"{EXTERNAL_ACCESS.group_prefix}*/*"
        )
        keeper = ControllerFunction(
            self,
            topology.EXTERNAL_TARGETS,
            code=lambda_bundle.lambda_code(lambda_bundle.NETWORK),
            network=None,
            settings=self._settings,
            more_statements=[
                iam.PolicyStatement(
                    sid="KeepTargets",
                    actions=["elasticloadbalancing:DeregisterTargets", "elasticloadbalancing:RegisterTargets"],
                    resources=[groups],
                ),
                iam.PolicyStatement(
                    sid="SeeTargets",
                    actions=[
                        "elasticloadbalancing:DescribeTargetGroups",
                        "elasticloadbalancing:DescribeTargetHealth",
                    ],
                    resources=["*"],
                ),
            ],
            more_environment={"HEADRACE_EXTERNAL_BALANCER": self._balancer.load_balancer_arn},
            asynchronous=PROMPT,
        )
        acknowledge_wildcard(keeper, groups, TARGET_GROUPS_REASON)
        acknowledge_wildcard(keeper, "*", DESCRIBE_REASON)
        name = f"headrace-{topology.EXTERNAL_TARGETS.name}"
        called = targets.LambdaFunction(
            keeper.function, max_event_age=PROMPT.event_age_max, retry_attempts=PROMPT.retries
        )
        events.Rule(
            self,
            "EachMinute",
            rule_name=f"{name}-minute",
            description="Calls the function that keeps the targets of the load balancer once a minute",
            schedule=events.Schedule.rate(cdk.Duration.minutes(1)),
            targets=[called],
        )
        events.Rule(
            self,
            "StoreTasks",
            rule_name=f"{name}-tasks",
            description="Calls the function that keeps the targets when a task of a store starts or stops",
            event_pattern=events.EventPattern(
                source=["aws.ecs"],
                detail_type=["ECS Task State Change"],
                detail={"lastStatus": ["RUNNING", "STOPPED"], "group": [{"prefix": "service:headrace-store-"}]},
            ),
            targets=[called],
        )
