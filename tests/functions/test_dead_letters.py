"""Dead letters from the last delivery to the operator: the processor, the dead-letter queues' function, the routes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import dead_letters, stream_requests, ticks
from headrace.model.errors import UnavailableError
from headrace.topology import REQUESTS_QUEUE, TICKS_QUEUE, Queue

LETTERS = "/v1/dead-letters"
SCALE = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]}
NOWHERE = f"{0:013d}-{'0' * 32}"


def record(body: Any, queue: Queue, *, dead: bool = False, received: int = 1) -> dict[str, Any]:
    name = queue.dead_letter_name if dead else queue.name
    return {
        "messageId": "m",
        "receiptHandle": "r",
        "body": body if isinstance(body, str) else json.dumps(body),
        "attributes": {
            "ApproximateReceiveCount": str(received),
            "ApproximateFirstReceiveTimestamp": "1700000000000",
        }
        | ({"MessageGroupId": "s/t"} if queue.fifo else {}),
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{name}",
    }


def failures(handler: Any, context: FunctionContext, record: dict[str, Any]) -> int:
    return len(handler({"Records": [record]}, context)["batchItemFailures"])


class DownProcessor:
    def process(self, body: Any) -> None:
        raise UnavailableError("no segment store answers")


@pytest.fixture
def scaling(active_stream: str, call: Call, world: FunctionWorld, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The message of a scale of s/t that no processor can do."""
    assert call("POST", f"{active_stream}/scale", SCALE).status == 202
    (message,) = world.queue.receive()
    world.queue.acknowledge(message.receipt)
    monkeypatch.setattr(wiring, "request_processor", DownProcessor)
    monkeypatch.setattr(wiring, "sqs_client", lambda: None)
    return message.body


def die(body: Any, context: FunctionContext) -> None:
    last = record(body, REQUESTS_QUEUE, received=REQUESTS_QUEUE.max_receive_count)
    assert failures(stream_requests.handler, context, last) == 1


def test_the_last_delivery_writes_the_letter(call: Call, context: FunctionContext, scaling: Any, active_stream: str):
    die(scaling, context)
    (letter,) = call("GET", LETTERS).body["letters"]
    assert letter["cause"] == {"code": "unavailable", "message": "no segment store answers"}
    assert (letter["status"], letter["kind"], letter["subject"]) == ("UNDONE", "scale_stream", "s/t")
    assert (letter["tries"], letter["firstTry"]) == (10, 1_700_000_000_000)
    assert letter["firstTry"] < letter["lastTry"]
    assert call("GET", f"{LETTERS}/{letter['letter']}").body == letter
    assert call("GET", active_stream).body["state"] == "ACTIVE"


def test_dead_letter_queue_does_not_change_a_letter(call: Call, context: FunctionContext, scaling: Any):
    die(scaling, context)
    before = call("GET", LETTERS).body
    assert failures(dead_letters.handler, context, record(scaling, REQUESTS_QUEUE, dead=True, received=11)) == 0
    assert call("GET", LETTERS).body == before


def test_dead_letter_queue_writes_a_missing_letter(
    call: Call, context: FunctionContext, scaling: Any, active_stream: str
):
    assert failures(dead_letters.handler, context, record(scaling, REQUESTS_QUEUE, dead=True, received=11)) == 0
    (letter,) = call("GET", LETTERS).body["letters"]
    assert (letter["cause"]["code"], letter["status"]) == ("processor_died", "UNDONE")
    assert call("GET", active_stream).body["state"] == "ACTIVE"


@pytest.mark.parametrize("body", ["not json", "[]", "[" * 50_000])
def test_unreadable_message_is_kept(call: Call, context: FunctionContext, scaling: Any, body: str):
    die(body, context)
    (letter,) = call("GET", LETTERS).body["letters"]
    assert (letter["status"], letter["cause"]["code"]) == ("UNPROCESSED", "invalid_request")
    assert letter["message"] == body[: 16 * 1024]


def test_a_tick_that_fails_for_the_last_time_is_kept(call: Call, context: FunctionContext, scaling: Any):
    last = record({"kind": "none"}, TICKS_QUEUE, received=TICKS_QUEUE.max_receive_count)
    assert failures(ticks.handler, context, last) == 1
    (letter,) = call("GET", LETTERS).body["letters"]
    assert (letter["queue"], letter["status"]) == (TICKS_QUEUE.name, "UNPROCESSED")


def test_message_of_an_unknown_queue_is_kept(context: FunctionContext, scaling: Any):
    assert failures(dead_letters.handler, context, record(scaling, REQUESTS_QUEUE)) == 1


def test_dead_letter_queue_keeps_message_while_store_is_down(
    world: FunctionWorld, context: FunctionContext, scaling: Any, monkeypatch: pytest.MonkeyPatch
):
    class Away:
        def get(self, key: Any) -> None:
            raise UnavailableError("the store does not answer")

    before = world.contents()
    monkeypatch.setattr(wiring, "metadata_store", Away)
    die(scaling, context)
    assert failures(dead_letters.handler, context, record(scaling, REQUESTS_QUEUE, dead=True)) == 1
    assert world.contents() == before


def test_replay_and_drop(call: Call, context: FunctionContext, scaling: Any, world: FunctionWorld, active_stream: str):
    die(scaling, context)
    path = f"{LETTERS}/{call('GET', LETTERS).body['letters'][0]['letter']}"
    replayed = call("POST", f"{path}/replay")
    assert (replayed.status, replayed.body["status"]) == (202, "REPLAYED")
    assert call("GET", active_stream).body["state"] == "SCALING"
    assert len(world.queue.receive()) == 1
    assert call("DELETE", path).status == 204
    assert call("DELETE", path).status == 404
    assert call("GET", LETTERS).body == {"letters": [], "continuationToken": None}


@pytest.mark.parametrize(("method", "suffix"), [("GET", ""), ("DELETE", ""), ("POST", "/replay")])
def test_bad_ids(call: Call, method: str, suffix: str):
    assert call(method, f"{LETTERS}/{NOWHERE}{suffix}").code == "not_found"
    assert call(method, f"{LETTERS}/not-an-id{suffix}").code == "invalid_request"


def test_bad_pages(call: Call):
    assert call("GET", LETTERS, continuationToken="a/b").status == 400
    assert call("GET", LETTERS, limit="0").status == 400
