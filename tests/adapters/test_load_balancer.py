"""The targets of a load balancer, in memory and with the API of an emulator: one contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from headrace.adapters.load_balancer import LoadBalancerTargets
from headrace.adapters.memory.external_targets import MemoryExternalTargets
from headrace.model.errors import InvalidRequestError, ThrottledError, UnavailableError
from headrace.ports.external_targets import ExternalTargets, Target
from headrace.topology.services import EXTERNAL_ACCESS

PORTS = [20_000, 20_001]


def made_on_aws() -> LoadBalancerTargets:
    session: Any = botocore.session.get_session()
    ec2, client = (session.create_client(name, region_name="us-east-1") for name in ("ec2", "elbv2"))
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    made = client.create_load_balancer(Name="outside", Subnets=[subnet], Type="network", Scheme="internal")
    balancer = made["LoadBalancers"][0]["LoadBalancerArn"]
    groups = {EXTERNAL_ACCESS.group_name(port): port for port in PORTS} | {"headrace-external-bridge": 9090}
    for name, port in groups.items():
        group = client.create_target_group(Name=name, Protocol="TCP", Port=port, VpcId=vpc, TargetType="ip")
        arn = group["TargetGroups"][0]["TargetGroupArn"]
        forward = [{"Type": "forward", "TargetGroupArn": arn}]
        client.create_listener(LoadBalancerArn=balancer, Protocol="TCP", Port=port, DefaultActions=forward)
    client.create_target_group(
        Name=EXTERNAL_ACCESS.group_name(30_000), Protocol="TCP", Port=1, VpcId=vpc, TargetType="ip"
    )
    return LoadBalancerTargets(client, balancer, EXTERNAL_ACCESS.group_prefix)


@pytest.fixture(params=["memory", "aws"])
def targets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExternalTargets]:
    if request.param == "memory":
        yield MemoryExternalTargets(PORTS)
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield made_on_aws()


def test_only_the_ports_of_this_balancer_are_known(targets: ExternalTargets):
    assert targets.ports() == PORTS


def test_targets_are_added_and_removed(targets: ExternalTargets):
    first, second = Target("10.0.0.10", 12345), Target("10.0.0.11", 12346)
    targets.ports()
    for target in (first, second, first):
        targets.add(PORTS[0], target)
    assert targets.targets(PORTS[0]) == {first: False, second: False}
    assert targets.targets(PORTS[1]) == {}
    targets.remove(PORTS[0], [first])
    assert targets.targets(PORTS[0]) == {second: False}
    targets.remove(PORTS[0], [first])


class Refusing:
    """A client whose calls have no answer."""

    def get_paginator(self, operation_name: str) -> Any:
        raise EndpointConnectionError(endpoint_url=operation_name)

    def register_targets(self, **request: Any) -> None:
        pytest.fail(f"no such port has a target group: {request}")


def test_a_balancer_that_does_not_answer_is_unavailable():
    targets = LoadBalancerTargets(Refusing(), "arn", "port-")  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        targets.ports()
    with pytest.raises(InvalidRequestError):
        targets.add(20_000, Target("10.0.0.10", 12345))


class Scripted:
    """A client with one target group. Its targets have the `states`; changes are refused with the error `code`."""

    def __init__(self, states: dict[str, str], code: str = "") -> None:
        self._states, self._code = states, code

    def get_paginator(self, _operation_name: str) -> Scripted:
        return self

    def paginate(self, **_request: Any) -> list[dict[str, Any]]:
        return [{"TargetGroups": [{"TargetGroupName": "port-20000", "TargetGroupArn": "arn"}]}]

    def describe_target_health(self, **_request: Any) -> dict[str, Any]:
        health = [
            {"Target": {"Id": host, "Port": 1}, "TargetHealth": {"State": state}}
            for host, state in self._states.items()
        ]
        return {"TargetHealthDescriptions": health}

    def register_targets(self, **_request: Any) -> None:
        raise ClientError({"Error": {"Code": self._code}}, "RegisterTargets")

    def deregister_targets(self, **_request: Any) -> None:
        raise ClientError({"Error": {"Code": self._code}}, "DeregisterTargets")


def test_a_target_that_is_being_removed_is_none():
    """A store may take the port of its address again before it is gone."""
    states = {"10.0.0.1": "draining", "10.0.0.2": "unhealthy", "10.0.0.3": "initial", "10.0.0.4": "healthy"}
    targets = LoadBalancerTargets(Scripted(states), "arn", "port-")  # type: ignore[arg-type]
    assert targets.ports() == [20_000]
    assert targets.targets(20_000) == {
        Target("10.0.0.2", 1): True,
        Target("10.0.0.3", 1): False,
        Target("10.0.0.4", 1): False,
    }


@pytest.mark.parametrize(
    ("code", "kind"),
    [("Throttling", ThrottledError), ("RequestLimitExceeded", ThrottledError), ("X", UnavailableError)],
)
def test_a_refused_change_says_if_it_was_throttled(code: str, kind: type[Exception]):
    targets = LoadBalancerTargets(Scripted({}, code), "arn", "port-")  # type: ignore[arg-type]
    targets.ports()
    with pytest.raises(kind, match=f"port 20000: {code}"):
        targets.add(20_000, Target("10.0.0.1", 1))
    with pytest.raises(kind, match=f"port 20000: {code}"):
        targets.remove(20_000, [Target("10.0.0.1", 1)])


def test_a_target_that_another_run_removed_is_gone():
    targets = LoadBalancerTargets(Scripted({}, "InvalidTarget"), "arn", "port-")  # type: ignore[arg-type]
    targets.ports()
    targets.remove(20_000, [Target("10.0.0.1", 1)])
    with pytest.raises(UnavailableError):
        targets.add(20_000, Target("10.0.0.1", 1))
