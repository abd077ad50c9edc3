"""Queues and schedules feed the functions that the topology names."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cdk_assembly import Assembly

from headrace import topology

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceProcessors"


@pytest.fixture
def mappings(assembly: Assembly, as_text: Callable[[object], str]):
    """(mapping, name of its function) by name of its queue."""
    return {
        as_text(mapping.properties["EventSourceArn"]).rpartition(":")[2]: (
            mapping.properties,
            assembly.get(STACK, mapping.properties["FunctionName"]).properties["FunctionName"],
        )
        for mapping in assembly.resources("AWS::Lambda::EventSourceMapping")
    }


def test_every_queue_feeds_its_function(mappings):
    assert {queue: function for queue, (_, function) in mappings.items()} == {
        each.name: f"headrace-{each.function}" for queue in topology.QUEUES for each in (queue, queue.dead_letters)
    }


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_only_failed_messages_go_back(mappings, declared):
    properties, _ = mappings[declared.name]
    assert properties["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert properties["BatchSize"] == declared.batch_size
    assert properties["ScalingConfig"] == {"MaximumConcurrency": declared.concurrency_max}
    assert "MaximumBatchingWindowInSeconds" not in properties  # FIFO queues know none


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_sqs_accepts_the_declared_limits(declared):
    assert 1 <= declared.batch_size <= 10
    assert 2 <= declared.concurrency_max <= 1_000
    assert declared.max_receive_count >= 5


def test_schedules_call_their_functions_with_their_events(assembly: Assembly, as_text: Callable[[object], str]):
    rules = {each.properties["Name"]: each for each in assembly.resources("AWS::Events::Rule", STACK)}
    declared = [each.name for each in topology.SCHEDULES] + [each.name for each in topology.EVENT_RULES]
    assert set(rules) == {f"headrace-{name}" for name in declared}
    for schedule in topology.SCHEDULES:
        properties = rules[f"headrace-{schedule.name}"].properties
        unit = "minute" if schedule.every_minutes == 1 else "minutes"
        assert properties["ScheduleExpression"] == f"rate({schedule.every_minutes} {unit})"
        (target,) = properties["Targets"]
        function = assembly.get(STACK, target["Arn"])
        assert function.properties["FunctionName"] == f"headrace-{schedule.function}"
        assert json.loads(target["Input"]) == schedule.event
        assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}


def test_events_call_their_functions(assembly: Assembly):
    rules = assembly.named("AWS::Events::Rule", "Name")
    for rule in topology.EVENT_RULES:
        properties = rules[f"headrace-{rule.name}"].properties
        assert properties["EventPattern"] == {
            "source": [rule.source],
            "detail-type": [rule.detail_type],
            "detail": rule.detail,
        }
        (target,) = properties["Targets"]
        function = assembly.get(STACK, target["Arn"])
        assert function.properties["FunctionName"] == f"headrace-{rule.function}"
        assert "Input" not in target
        assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 300, "MaximumRetryAttempts": 3}


def test_lambda_does_not_keep_ticks_and_events_for_hours(assembly: Assembly):
    """EventBridge hands an event over to a queue of Lambda's own, which keeps it for 6 hours unless told otherwise."""
    limits = {
        assembly.get(STACK, config.properties["FunctionName"]).properties["FunctionName"]: (
            config.properties["MaximumEventAgeInSeconds"],
            config.properties["MaximumRetryAttempts"],
        )
        for config in assembly.resources("AWS::Lambda::EventInvokeConfig", STACK)
    }
    expected = {f"headrace-{schedule.function}": (60, 0) for schedule in topology.SCHEDULES}
    expected |= {f"headrace-{rule.function}": (300, 2) for rule in topology.EVENT_RULES}
    # What is not copied for hours is not lost: it is in the log of its function.
    assert limits == expected | {"headrace-audit-log": (21_600, 2)}


def test_event_rule_matches_stopped_tasks_of_the_stores(assembly: Assembly):
    (rule,) = topology.EVENT_RULES
    (match,) = rule.detail["group"]
    services = assembly.named("AWS::ECS::Service", "ServiceName")
    assert services
    assert all(f"service:{name}".startswith(match["prefix"]) for name in services if "store" in name)
