"""Who asked for a request is known in its record, its messages, the log lines of its steps, and its dead letter."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld, StreamBody, handler_of
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import stream_requests, tables, ticks
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.request_queue import MemoryRequestQueue, QueuedMessage
from headrace.controller.ticks.resend_intents import resend_intents
from headrace.metadata.intent import intent_key, read_intent
from headrace.model.errors import UnavailableError
from headrace.model.requests import Requester, ResourceKind
from headrace.ports.request_queue import current_requester
from headrace.topology import REQUESTS_QUEUE, TABLES_QUEUE, Queue

ANN = Requester("arn:aws:sts::111122223333:assumed-role/ann/laptop", "deploy-7")
AGENT = Requester("arn:aws:sts::111122223333:assumed-role/agent/i-1", "gateway-2")


TABLE = {"tableName": "k", "partitionCount": 1, "primaryKeyLength": 4}


@pytest.fixture
def ask(context: FunctionContext) -> Any:
    """`ask(requester, method, path, body)` sends a request as API Gateway would for this principal."""

    def send(requester: Requester, method: str, path: str, body: Any = None, **query: str) -> int:
        template = next(
            route
            for route in topology.ROUTES
            if route.method == method and len(route.path.split("/")) == len(path.split("/")) and _fits(route.path, path)
        )
        pairs = zip(template.path.split("/"), path.split("/"), strict=True)
        event = {
            "version": "2.0",
            "routeKey": template.key,
            "pathParameters": {part[1:-1]: value for part, value in pairs if part.startswith("{")},
            "rawPath": path,
            "rawQueryString": "",
            "headers": {"x-headrace-correlation-id": requester.correlation_id},
            "requestContext": {
                "http": {"method": method, "path": path},
                "authorizer": {"iam": {"userArn": requester.principal}},
                "requestId": "gateway-1",
                "stage": "$default",
            },
            "queryStringParameters": query,
            "isBase64Encoded": False,
        }
        if body is not None:
            event["body"] = json.dumps(body)
        return int(handler_of(topology.function(template.function))(event, context)["statusCode"])

    return send


def _fits(template: str, path: str) -> bool:
    parts = zip(template.split("/"), path.split("/"), strict=True)
    return all(part == value or part.startswith("{") for part, value in parts)


def _record(message: QueuedMessage, queue: Queue, *, received: int = 1, attributes: bool = True) -> dict[str, Any]:
    """The record that Lambda gets for a message; without `attributes` as a former release has sent it."""
    told = {}
    if attributes and message.requester is not None:
        texts = {"requestedBy": message.requester.principal, "correlationId": message.requester.correlation_id}
        told = {name: {"stringValue": text, "dataType": "String"} for name, text in texts.items() if text}
    return {
        "messageId": message.receipt,
        "receiptHandle": message.receipt,
        "body": json.dumps(message.body),
        "attributes": {"ApproximateReceiveCount": str(received), "MessageGroupId": message.group},
        "messageAttributes": told,
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{queue.name}",
    }


def _steps(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Step, principal and correlation id of each line of a step."""
    lines: list[Any] = [record for record in caplog.records if hasattr(record, "requestedBy")]
    return [(line.step, line.requestedBy, line.correlationId) for line in lines]


def test_the_steps_of_a_request_tell_who_asked(
    ask: Any, world: FunctionWorld, context: FunctionContext, fixed_stream: StreamBody, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "headrace.controller.engine")
    assert ask(ANN, "POST", "/v1/scopes", {"scopeName": "s"}) == 201
    assert ask(ANN, "POST", "/v1/scopes/s/streams", fixed_stream()) == 201
    intent = world.store.get(intent_key("s", "t"))
    assert intent is not None
    assert read_intent(intent).requester == ANN
    (message,) = world.queue.receive()
    assert message.requester == ANN
    assert stream_requests.handler({"Records": [_record(message, REQUESTS_QUEUE)]}, context)["batchItemFailures"] == []
    steps = _steps(caplog)
    assert steps
    assert {(principal, identity) for _, principal, identity in steps} == {(ANN.principal, ANN.correlation_id)}
    assert ANN.principal in caplog.text


def test_a_message_of_a_former_release_is_worked_on(
    ask: Any, world: FunctionWorld, context: FunctionContext, fixed_stream: StreamBody, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "headrace.controller.engine")
    ask(ANN, "POST", "/v1/scopes", {"scopeName": "s"})
    ask(ANN, "POST", "/v1/scopes/s/streams", fixed_stream())
    (message,) = world.queue.receive()
    record = _record(message, REQUESTS_QUEUE, attributes=False)
    assert stream_requests.handler({"Records": [record]}, context)["batchItemFailures"] == []
    assert {(principal, identity) for _, principal, identity in _steps(caplog)} == {("", "")}
    assert "a former release" in caplog.text


def test_what_a_request_begins_is_of_the_same_requester(
    ask: Any, world: FunctionWorld, context: FunctionContext, fixed_stream: StreamBody, caplog: pytest.LogCaptureFixture
):
    """A scope is deleted with its streams: their steps are of the one who deletes the scope."""
    ask(ANN, "POST", "/v1/scopes", {"scopeName": "s"})
    ask(ANN, "POST", "/v1/scopes/s/streams", fixed_stream())
    world.work()
    caplog.set_level(logging.INFO, "headrace.controller.engine")
    caplog.clear()
    assert ask(AGENT, "DELETE", "/v1/scopes/s", recursive="true") == 202
    while messages := world.queue.receive():
        for message in messages:
            assert message.requester == AGENT
            stream_requests.handler({"Records": [_record(message, REQUESTS_QUEUE)]}, context)
            world.queue.acknowledge(message.receipt)
    steps = _steps(caplog)
    assert len(steps) > 3
    assert {principal for _, principal, _ in steps} == {AGENT.principal}


def test_a_message_that_is_sent_again_tells_it_too(
    ask: Any, world: FunctionWorld, fixed_stream: StreamBody, monkeypatch: pytest.MonkeyPatch
):
    clock = ManualClock()
    monkeypatch.setattr(wiring, "clock", lambda: clock)
    wiring.forget_services()
    ask(ANN, "POST", "/v1/scopes", {"scopeName": "s"})
    ask(ANN, "POST", "/v1/scopes/s/streams", fixed_stream())
    clock.advance(600_000)
    again = MemoryRequestQueue()
    buckets = range(topology.BUCKET_COUNT)
    assert (
        sum(resend_intents(world.store, dict.fromkeys(ResourceKind, again), clock, bucket, 1) for bucket in buckets)
        == 1
    )
    assert [request.requester for request in again.receive()] == [ANN]


class DownProcessor:
    def process(self, body: Any) -> None:
        raise UnavailableError("no segment store answers")


@pytest.mark.parametrize("is_told", [True, False])
def test_a_dead_letter_tells_who_asked(
    ask: Any, call: Call, world: FunctionWorld, context: FunctionContext, monkeypatch: pytest.MonkeyPatch, is_told: bool
):
    ask(ANN, "POST", "/v1/scopes", {"scopeName": "s"})
    assert ask(ANN, "POST", "/v1/scopes/s/key-value-tables", TABLE) == 201
    (message,) = world.queue.receive()
    monkeypatch.setattr(wiring, "request_processor", DownProcessor)
    monkeypatch.setattr(wiring, "sqs_client", lambda: None)
    last = _record(message, TABLES_QUEUE, received=TABLES_QUEUE.max_receive_count, attributes=is_told)
    assert len(tables.handler({"Records": [last]}, context)["batchItemFailures"]) == 1
    (letter,) = call("GET", "/v1/dead-letters").body["letters"]
    assert letter["requestedBy"] == (ANN.principal if is_told else None)


@pytest.mark.parametrize("again", [AGENT, None], ids=["replayed", "not told"])
def test_a_letter_keeps_who_asked_first(
    ask: Any,
    call: Call,
    world: FunctionWorld,
    context: FunctionContext,
    monkeypatch: pytest.MonkeyPatch,
    again: Requester | None,
):
    """An operator has the request repeated, or a former release does. It is still the request of the first."""
    ask(ANN, "POST", "/v1/scopes", {"scopeName": "s"})
    assert ask(ANN, "POST", "/v1/scopes/s/key-value-tables", TABLE) == 201
    (message,) = world.queue.receive()
    monkeypatch.setattr(wiring, "request_processor", DownProcessor)
    monkeypatch.setattr(wiring, "sqs_client", lambda: None)
    for requester in (ANN, again):
        told = replace(message, requester=requester)
        last = _record(told, TABLES_QUEUE, received=TABLES_QUEUE.max_receive_count)
        assert len(tables.handler({"Records": [last]}, context)["batchItemFailures"]) == 1
    (letter,) = call("GET", "/v1/dead-letters").body["letters"]
    assert letter["tries"] == 2 * TABLES_QUEUE.max_receive_count
    assert letter["requestedBy"] == ANN.principal


def test_work_of_a_tick_is_of_the_function(world: FunctionWorld, context: FunctionContext, monkeypatch: Any):
    seen: list[Requester | None] = []

    def work(bucket: int) -> bool:
        seen.append(current_requester())
        return False

    monkeypatch.setattr(ticks, "TICK_WORK", {"retention": work})
    record = {
        "messageId": "m",
        "receiptHandle": "r",
        "body": json.dumps({"kind": "retention", "bucket": 0}),
        "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:1:{topology.TICKS_QUEUE.name}",
    }
    assert ticks.handler({"Records": [record]}, context) == {"batchItemFailures": []}
    assert seen == [Requester("headrace-function/ticks", "")]
