"""Queues and dead-letter queues are as declared, encrypted, and patient enough for their functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cdk_assembly import Assembly

from headrace import topology

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
VISIBILITY_PER_FUNCTION_TIMEOUT = 6


@pytest.fixture
def queues(assembly: Assembly):
    return assembly.named("AWS::SQS::Queue", "QueueName")


def test_the_queues_are_those_of_the_topology(queues):
    declared = {queue.name for queue in topology.QUEUES} | {queue.dead_letter_name for queue in topology.QUEUES}
    assert set(queues) == declared


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_queue_is_as_declared(assembly: Assembly, queues, declared):
    queue, dead_letters = queues[declared.name], queues[declared.dead_letter_name]
    assert queue.properties["VisibilityTimeout"] == declared.visibility_timeout_s
    assert queue.properties["RedrivePolicy"]["maxReceiveCount"] == declared.max_receive_count
    target = queue.properties["RedrivePolicy"]["deadLetterTargetArn"]
    assert assembly.get(queue.stack, target).logical_id == dead_letters.logical_id
    assert dead_letters.properties["VisibilityTimeout"] == declared.dead_letters.visibility_timeout_s
    assert dead_letters.properties["MessageRetentionPeriod"] > queue.properties["MessageRetentionPeriod"]


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_only_its_own_queue_sends_dead_letters(queues, declared, as_text: Callable[[object], str]):
    policy = queues[declared.dead_letter_name].properties["RedriveAllowPolicy"]
    assert policy["redrivePermission"] == "byQueue"
    assert [as_text(arn).rpartition(":")[2] for arn in policy["sourceQueueArns"]] == [declared.name]


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_fifo_queues_count_limits_per_stream(queues, declared):
    properties = queues[declared.name].properties
    assert properties.get("FifoQueue", False) == declared.fifo
    assert queues[declared.dead_letter_name].properties.get("FifoQueue", False) == declared.fifo
    assert properties.get("DeduplicationScope") == ("messageGroup" if declared.fifo else None)
    assert properties.get("FifoThroughputLimit") == ("perMessageGroupId" if declared.fifo else None)


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_a_message_is_not_given_out_again_while_it_is_worked_on(declared):
    for queue in (declared, declared.dead_letters):
        function = topology.function(queue.function)
        assert queue.visibility_timeout_s >= VISIBILITY_PER_FUNCTION_TIMEOUT * function.timeout_s


def test_queues_are_encrypted_and_refuse_plain_http(assembly: Assembly, queues, as_text: Callable[[object], str]):
    assert {queue.properties["SqsManagedSseEnabled"] for queue in queues.values()} == {True}
    guarded = {
        assembly.get(policy.stack, reference).logical_id
        for policy in assembly.resources("AWS::SQS::QueuePolicy")
        for statement in policy.properties["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Deny" and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        for reference in policy.properties["Queues"]
    }
    assert guarded == {queue.logical_id for queue in queues.values()}
