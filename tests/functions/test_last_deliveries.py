"""What happens to a stream whose request is about to become a dead letter, and to neighbours of a slow request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import stream_requests
from headrace.adapters.dynamodb.client import RETRIES_END_AFTER_S
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.adapters.tcp.segment_stores import TcpSegmentStores
from headrace.adapters.tcp.store_calls import StoreAddress
from headrace.model.errors import UnavailableError
from headrace.topology import REQUESTS_QUEUE, function

LAST = REQUESTS_QUEUE.max_receive_count
SCALE = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]}


class DownStores(MemorySegmentStores):
    """No segment is created or sealed any more; no queue is asked for later deliveries."""

    def create_segments(self, *_: Any, **__: Any) -> None:
        raise UnavailableError("no segment store answers")

    def seal_segments(self, names: Any) -> None:
        raise UnavailableError("no segment store answers")


@pytest.fixture
def stores_down(active_stream: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a stream that is ACTIVE while its segment stores are down."""
    wiring.forget_services()
    monkeypatch.setattr(wiring, "segment_stores", DownStores)
    monkeypatch.setattr(wiring, "sqs_client", lambda: None)
    return active_stream


def deliver(world: FunctionWorld, context: FunctionContext, body: Any = None, *, received: int) -> int:
    """Deliver the one queued message, or `body`; how many messages are to come again."""
    if body is None:
        (message,) = world.queue.receive()
        world.queue.release(message.receipt)
        body = message.body
    record = {
        "messageId": "m",
        "receiptHandle": "r",
        "body": json.dumps(body),
        "attributes": {"MessageGroupId": "s/t", "ApproximateReceiveCount": str(received)},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:headrace-requests.fifo",
    }
    return len(stream_requests.handler({"Records": [record]}, context)["batchItemFailures"])


def test_dead_letter_rolls_back_a_scale_that_never_started(
    stores_down: str, world: FunctionWorld, call: Call, context: FunctionContext
):
    assert call("POST", f"{stores_down}/scale", SCALE).status == 202
    assert deliver(world, context, received=LAST) == 1
    assert call("GET", stores_down).body["state"] == "ACTIVE"
    assert call("GET", f"{stores_down}/scale/1").body["status"] == "INVALID"
    assert call("PUT", f"{stores_down}/state", {"streamState": "SEALED"}).status == 202


def test_before_the_last_delivery_a_scale_is_tried_again(
    stores_down: str, world: FunctionWorld, call: Call, context: FunctionContext
):
    assert call("POST", f"{stores_down}/scale", SCALE).status == 202
    assert deliver(world, context, received=LAST - 1) == 1
    assert call("GET", stores_down).body["state"] == "SCALING"


def test_the_dead_letter_of_one_scale_does_not_end_another(
    stores_down: str, world: FunctionWorld, call: Call, context: FunctionContext
):
    assert call("POST", f"{stores_down}/scale", SCALE).status == 202
    (message,) = world.queue.receive()
    world.queue.acknowledge(message.receipt)
    assert deliver(world, context, message.body, received=LAST) == 1
    other = SCALE | {"newRanges": [{"low": 0.0, "high": 0.5}]}
    assert call("POST", f"{stores_down}/scale", other).status == 202
    assert deliver(world, context, message.body, received=LAST) == 0
    assert call("GET", stores_down).body["state"] == "SCALING"


def test_request_without_rollback_stays_for_the_sweeper(
    stores_down: str, world: FunctionWorld, call: Call, context: FunctionContext
):
    assert call("PUT", f"{stores_down}/state", {"streamState": "SEALED"}).status == 202
    before = {name: repr(partition) for name, partition in world.store._partitions.items()}
    assert deliver(world, context, received=LAST) == 1
    after = {name: repr(partition) for name, partition in world.store._partitions.items()}
    assert {name: text for name, text in after.items() if not name.startswith("dead-letter")} == before
    assert call("GET", stores_down).body["state"] == "SEALING"


def test_malformed_message_becomes_a_dead_letter(stores_down: str, world: FunctionWorld, context: FunctionContext):
    assert deliver(world, context, {"kind": "other"}, received=LAST) == 1


def test_slow_requests_do_not_use_up_each_others_time():
    """Else a function is stopped, and streams that are well wait for the visibility time-out of all its messages."""
    slowest_s = TcpSegmentStores(lambda _: StoreAddress("", 0, 0), 1)._deadline_s + RETRIES_END_AFTER_S
    assert REQUESTS_QUEUE.batch_size * slowest_s <= function(REQUESTS_QUEUE.function).timeout_s
