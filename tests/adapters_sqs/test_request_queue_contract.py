"""What `ports.request_queue` promises, in memory and on SQS (moto): order in a group, deduplication, redelivery."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.request_queue import DEDUPLICATION_WINDOW_MS, MemoryRequestQueue
from headrace.adapters.sqs import MESSAGE_BYTES_MAX, SqsRequestQueue, short_id
from headrace.model.errors import InvalidRequestError, NotFoundError, OutOfTimeError, ThrottledError, UnavailableError
from headrace.model.requests import Requester
from headrace.ports.clock import time_limit
from headrace.ports.request_queue import requested_by


class _SqsConsumer:
    """The consuming side of SQS with the words of the memory queue."""

    def __init__(self, url: str, client: Any) -> None:
        self._url, self._client = url, client

    def receive(self) -> list[tuple[str, dict[str, Any]]]:
        messages = self._client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages", [])
        return [(message["ReceiptHandle"], json.loads(message["Body"])) for message in messages]

    def acknowledge(self, receipt: str) -> None:
        self._client.delete_message(QueueUrl=self._url, ReceiptHandle=receipt)

    def release(self, receipt: str) -> None:
        self._client.change_message_visibility(QueueUrl=self._url, ReceiptHandle=receipt, VisibilityTimeout=0)


class _MemoryConsumer:
    def __init__(self, queue: MemoryRequestQueue) -> None:
        self._queue = queue
        self.acknowledge, self.release = queue.acknowledge, queue.release

    def receive(self) -> list[tuple[str, dict[str, Any]]]:
        return [(message.receipt, message.body) for message in self._queue.receive(10)]


@pytest.fixture
def sqs(aws_environment: dict[str, str]) -> Iterator[tuple[str, Any]]:
    with mock_aws():
        client = boto3.client("sqs", region_name="us-east-1")
        # A name of its own: the double is one per process, and another test may hold it open.
        name = f"requests-{uuid.uuid4()}.fifo"
        url = client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
        yield url, client


@pytest.fixture(params=["memory", "sqs"])
def queue_and_consumer(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    if request.param == "memory":
        queue = MemoryRequestQueue()
        return queue, _MemoryConsumer(queue)
    url, client = request.getfixturevalue("sqs")
    return SqsRequestQueue(url, client), _SqsConsumer(url, client)


def _send(queue: Any, group: str, number: int) -> None:
    queue.send(group=group, body={"n": number, "text": "Straße"}, deduplication_id=f"{group}-{number}")


def test_a_group_is_in_order_and_the_body_comes_back(queue_and_consumer: tuple[Any, Any]):
    queue, consumer = queue_and_consumer
    for number in range(3):
        _send(queue, "s/t", number)
    seen = []
    while messages := consumer.receive():
        for receipt, body in messages:
            seen.append(body)
            consumer.acknowledge(receipt)
    assert seen == [{"n": number, "text": "Straße"} for number in range(3)]


@pytest.mark.parametrize("requester", [None, Requester("grpc:ann", "deploy-7"), Requester("local", "")])
def test_a_message_tells_who_asked_for_its_work(sqs: tuple[str, Any], requester: Requester | None):
    """As an attribute, so that the body stays the one that former releases read."""
    url, client = sqs
    memory = MemoryRequestQueue()
    with requested_by(requester):
        _send(memory, "s/t", 0)
        _send(SqsRequestQueue(url, client), "s/t", 0)
    (in_memory,) = memory.receive()
    (message,) = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    attributes = {name: attribute["StringValue"] for name, attribute in message.get("MessageAttributes", {}).items()}
    assert json.loads(message["Body"]) == in_memory.body == {"n": 0, "text": "Straße"}
    assert in_memory.requester == requester
    texts = {} if requester is None else {"requestedBy": requester.principal, "correlationId": requester.correlation_id}
    assert attributes == {name: text for name, text in texts.items() if text}


def test_groups_do_not_wait_for_each_other(queue_and_consumer: tuple[Any, Any]):
    queue, consumer = queue_and_consumer
    _send(queue, "s/a", 0)
    assert len(consumer.receive()) == 1
    _send(queue, "s/b", 1)
    assert [body["n"] for _, body in consumer.receive()] == [1]


def test_a_group_waits_for_its_message_in_flight(queue_and_consumer: tuple[Any, Any]):
    queue, consumer = queue_and_consumer
    _send(queue, "s/t", 0)
    ((receipt, _),) = consumer.receive()
    _send(queue, "s/t", 1)
    assert consumer.receive() == []
    consumer.acknowledge(receipt)
    assert [body["n"] for _, body in consumer.receive()] == [1]


def test_what_was_sent_already_is_dropped(queue_and_consumer: tuple[Any, Any]):
    queue, consumer = queue_and_consumer
    _send(queue, "s/t", 0)
    _send(queue, "s/t", 0)
    ((receipt, _),) = consumer.receive()
    consumer.acknowledge(receipt)
    assert consumer.receive() == []


def test_a_message_is_sent_as_long_as_time_is_left(queue_and_consumer: tuple[Any, Any]):
    queue, consumer = queue_and_consumer
    clock = ManualClock()
    with time_limit(clock, 3):
        clock.advance(2_999)
        _send(queue, "s/t", 0)
        clock.advance(1)
        with pytest.raises(OutOfTimeError):
            _send(queue, "s/t", 1)
    assert [body["n"] for _, body in consumer.receive()] == [0]


def test_what_was_given_back_comes_again(queue_and_consumer: tuple[Any, Any]):
    queue, consumer = queue_and_consumer
    _send(queue, "s/t", 0)
    ((receipt, _),) = consumer.receive()
    consumer.release(receipt)
    ((_, body),) = consumer.receive()
    assert body["n"] == 0


def test_the_longest_names_make_a_group(queue_and_consumer: tuple[Any, Any]):
    queue, consumer = queue_and_consumer
    group = f"{'s' * 255}/{'t' * 250}"
    queue.send(group=group, body={"n": 0}, deduplication_id="x" * 300)
    assert [body for _, body in consumer.receive()] == [{"n": 0}]


def test_short_ids_are_kept_and_long_ones_hashed():
    assert short_id("s/t") == "s/t"
    assert short_id("x" * 128) == "x" * 128
    assert len(short_id("x" * 129)) == 64
    assert short_id("x" * 129) != short_id("x" * 130)


def test_memory_forgets_ids_as_sqs_does():
    clock = ManualClock()
    queue = MemoryRequestQueue(clock)
    _send(queue, "s/t", 0)
    (message,) = queue.receive()
    queue.acknowledge(message.receipt)
    clock.advance(DEDUPLICATION_WINDOW_MS - 1)
    _send(queue, "s/t", 0)
    assert len(queue) == 0
    clock.advance(1)
    _send(queue, "s/t", 0)
    assert len(queue) == 1


def test_memory_gives_up_after_so_many_deliveries():
    queue = MemoryRequestQueue(max_receive_count=2)
    _send(queue, "s/t", 0)
    counts = []
    while messages := queue.receive():
        counts.append(messages[0].receive_count)
        queue.release(messages[0].receipt)
    assert counts == [1, 2]
    assert queue.dead_letters() == [{"n": 0, "text": "Straße"}]
    with pytest.raises(NotFoundError):
        queue.release("receipt-2")


class _FailingClient:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def send_message(self, **_: Any) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientError({"Error": {"Code": "RequestThrottled"}}, "SendMessage"), ThrottledError),
        (ClientError({"Error": {"Code": "AWS.SimpleQueueService.ThrottlingException"}}, "SendMessage"), ThrottledError),
        (ClientError({"Error": {"Code": "InternalError"}}, "SendMessage"), UnavailableError),
        (ClientError({}, "SendMessage"), UnavailableError),
        (EndpointConnectionError(endpoint_url="http://sqs"), UnavailableError),
    ],
)
def test_failures_say_what_to_do(error: Exception, kind: type[Exception]):
    queue = SqsRequestQueue("url", _FailingClient(error))  # type: ignore[arg-type]
    with pytest.raises(kind):
        _send(queue, "s/t", 0)


def test_a_queue_that_is_gone_does_not_answer(sqs: tuple[str, Any]):
    url, client = sqs
    with pytest.raises(UnavailableError, match="NonExistent"):
        _send(SqsRequestQueue(url + "x", client), "s/t", 0)


def test_messages_are_bounded():
    queue = SqsRequestQueue("url", _FailingClient(AssertionError("nothing may be sent")))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError):
        queue.send(group="g", body={"x": "y" * MESSAGE_BYTES_MAX}, deduplication_id="d")
