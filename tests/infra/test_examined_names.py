"""`headrace doctor` asks AWS for stacks and resources by name: each exists in a deployment."""

from __future__ import annotations

import pytest
from cdk_assembly import Assembly

from headrace import topology
from headrace.doctor.account_checks import ALARM_PREFIX, REQUIRED_STACKS, STACK_PREFIX

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


def test_every_deployment_has_the_required_stacks(assembly: Assembly, smallest_assembly: Assembly):
    for deployed in (assembly, smallest_assembly):
        assert set(REQUIRED_STACKS) <= set(deployed.templates)
        assert all(name.startswith(STACK_PREFIX) for name in deployed.templates)


def test_examined_resources_have_their_names(default_assembly: Assembly):
    def names(type_: str, name_property: str) -> set[str]:
        return set(default_assembly.named(type_, name_property))

    assert topology.METADATA_TABLE.name in names("AWS::DynamoDB::Table", "TableName")
    assert topology.SEGMENT_STORES.cluster in names("AWS::ECS::Cluster", "ClusterName")
    assert topology.TOKEN_KEYS_SECRET in names("AWS::SecretsManager::Secret", "Name")
    assert {f"headrace-{each.name}" for each in topology.SCHEDULES} <= names("AWS::Events::Rule", "Name")
    alarms = names("AWS::CloudWatch::Alarm", "AlarmName")
    assert alarms
    assert all(name.startswith(ALARM_PREFIX) for name in alarms)
