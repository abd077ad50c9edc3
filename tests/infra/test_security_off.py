"""What a deployment lacks without TLS and tokens: exactly what is listed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cdk_assembly import Assembly, Resource

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

ALARMS = {
    "headrace-authority-ends-soon",
    "headrace-certificates-errors",
    "headrace-certificates-stopped",
    "headrace-token-failures",
    "headrace-token-keys-errors",
    *(f"headrace-store-{zone}-certificate-expiry" for zone in range(3)),
}
TOKEN_VARIABLES = {"HEADRACE_TOKENS", "HEADRACE_TOKEN_KEYS_SECRET"}
TLS_VARIABLES = {"HEADRACE_TLS", "HEADRACE_TLS_NAME", "HEADRACE_TLS_SECRET"}


def test_a11_security_off_lacks_these_resources(default_assembly: Assembly, assembly: Assembly) -> None:
    """The other templates keep each of their resources, so that a running deployment can change."""
    stacks = default_assembly.templates.keys() - assembly.templates.keys()
    assert stacks == {"HeadraceCertificates", "HeadraceTokenKeys"}
    present = {(each.stack, each.logical_id) for each in assembly.resources()}
    known = {(each.stack, each.logical_id): each for each in default_assembly.resources()}
    assert present <= known.keys()
    lacking = [each for name, each in known.items() if name not in present and each.stack not in stacks]
    alarms = {each.properties.get("AlarmName") for each in lacking if each.type == "AWS::CloudWatch::Alarm"}
    assert alarms == ALARMS
    others = [each for each in lacking if each.type != "AWS::CloudWatch::Alarm"]
    assert {each.type for each in others} == {"AWS::ServiceDiscovery::Service"}
    assert {each.properties["Name"] for each in others} == {"store-0", "store-1", "store-2"}


def test_a11_security_off_changes_these_properties(default_assembly: Assembly, assembly: Assembly) -> None:
    without = {(each.stack, each.logical_id): each for each in assembly.resources()}
    changed: set[tuple[str, str]] = set()
    patterns = []
    for each in default_assembly.resources():
        other = without.get((each.stack, each.logical_id))
        if other is not None and other.properties != each.properties:
            changed |= {(each.type, name) for name in _differences(each, other)}
            patterns += [pair.properties.get("EventPattern") for pair in (each, other)]
    assert not [each for each in patterns if each], "a rule differs, which has nothing to do with security"
    assert changed == {
        *(("AWS::Lambda::Function", name) for name in TOKEN_VARIABLES),
        *(("AWS::ECS::TaskDefinition", name) for name in TOKEN_VARIABLES | TLS_VARIABLES),
        ("AWS::IAM::Role", "headrace-token-keys"),
        ("AWS::ECS::Service", "ServiceRegistries"),
        ("Custom::HeadraceTlsStep", "Tls"),
        ("AWS::CloudWatch::Dashboard", "DashboardBody"),
    }


def _differences(secure: Resource, plain: Resource) -> Iterator[str]:
    """Variables, the secret in statements of a policy, and the names of other properties, that differ."""
    for name in secure.properties.keys() | plain.properties.keys():
        mine: Any = secure.properties.get(name)
        others: Any = plain.properties.get(name)
        if mine == others:
            continue
        match secure.type, name:
            case "AWS::Lambda::Function", "Environment":
                yield from _different_variables(mine["Variables"], others["Variables"])
            case "AWS::ECS::TaskDefinition", "ContainerDefinitions":
                yield from _different_variables(*(_variables_of_task(each) for each in (mine, others)))
            case "AWS::IAM::Role", "Policies":
                yield from _secret_of_more_statements(mine, others)
            case _:
                yield name


def _different_variables(mine: dict[str, Any], others: dict[str, Any]) -> Iterator[str]:
    return (name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))


def _variables_of_task(containers: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = containers
    return {each["Name"]: each["Value"] for each in container["Environment"]}


def _secret_of_more_statements(mine: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[str]:
    before, after = (
        [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]
        for policies in (others, mine)
    )
    assert [each for each in before if each not in after] == []
    for statement in after:
        if statement not in before:
            assert statement["Action"] == "secretsmanager:GetSecretValue"
            yield "headrace-token-keys" if "headrace-token-keys" in str(statement["Resource"]) else str(statement)
