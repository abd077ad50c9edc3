"""One operation is found end to end by its correlation id: in records, messages, log lines, dead letters, audit lines.

The log is the one that the functions write, and the filter the one of the saved query "one operation".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld, StreamBody
from lambda_context import FunctionContext

from functions import wiring
from functions.observability import logger
from functions.processors import dead_letters, stream_requests
from headrace import topology
from headrace.adapters import audit_log, sqs
from headrace.controller import engine
from headrace.metadata.intent import intent_key, read_intent
from headrace.model.errors import UnavailableError
from headrace.topology import REQUESTS_QUEUE
from infra.stacks.dashboard import SAVED_QUERIES

IDENTITY = "deploy-7"
HEADERS = {"x-headrace-correlation-id": IDENTITY}
SCALE = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.5}, {"low": 0.5, "high": 1.0}]}


class Lines:
    """The log of the functions and their audit lines, as documents."""

    def __init__(self, written: StringIO, audited: Path) -> None:
        self._written = written
        self._audited = audited

    def all(self) -> list[dict[str, Any]]:
        text = self._written.getvalue() + (self._audited.read_text() if self._audited.exists() else "")
        return [json.loads(line) for line in text.splitlines()]

    def of_operation(self) -> list[dict[str, Any]]:
        """As the query filters them."""
        return [line for line in self.all() if line.get("correlationId") == IDENTITY]


@pytest.fixture
def lines(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Lines]:
    written = StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logger.registered_formatter)
    monkeypatch.setenv(audit_log.FILE, str(tmp_path / "audit.log"))
    wiring.forget_services()
    loggers = (logging.getLogger(logger.name), engine._log)
    for each in loggers:
        each.addHandler(handler)
    engine._log.setLevel(logging.INFO)
    yield Lines(written, tmp_path / "audit.log")
    for each in loggers:
        each.removeHandler(handler)
    engine._log.setLevel(logging.NOTSET)


def _records(world: FunctionWorld, *, received: int = 1, queue: str = REQUESTS_QUEUE.name) -> list[dict[str, Any]]:
    """The next messages as Lambda gets them, with the attributes that the adapter of SQS sends."""
    return [
        {
            "messageId": message.receipt,
            "receiptHandle": message.receipt,
            "body": json.dumps(message.body),
            "attributes": {"ApproximateReceiveCount": str(received), "MessageGroupId": message.group},
            "messageAttributes": {
                name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
                for name, value in sqs._attributes(message.requester).items()
            },
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{queue}",
        }
        for message in world.queue.receive()
    ]


def _scale(call: Call, world: FunctionWorld, fixed_stream: StreamBody) -> None:
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    assert call("POST", "/v1/scopes/s/streams", fixed_stream(segments=1)).status == 201
    world.work()
    assert call("POST", "/v1/scopes/s/streams/t/scale", SCALE, headers=HEADERS).status == 202


def test_the_query_filters_by_the_correlation_id():
    (query,) = [each for each in SAVED_QUERIES if each.name == "headrace/one operation"]
    assert '| filter correlationId = "' in query.text


def test_a_scale_is_found_from_the_call_to_its_last_step(
    call: Call, world: FunctionWorld, context: FunctionContext, fixed_stream: StreamBody, lines: Lines
):
    _scale(call, world, fixed_stream)
    intent = world.store.get(intent_key("s", "t"))
    assert intent is not None
    requester = read_intent(intent).requester
    assert requester is not None
    assert requester.correlation_id == IDENTITY
    answer = stream_requests.handler({"Records": _records(world)}, context)
    assert answer["batchItemFailures"] == []
    found = lines.of_operation()
    assert [line["action"] for line in found if "action" in line] == ["stream.scale"]
    steps = [line for line in lines.all() if str(line.get("message")).startswith("scale_stream of s/t: ")]
    assert len(steps) >= 2
    assert steps == [line for line in found if "step" in line]


@pytest.mark.parametrize("died", [False, True], ids=["refused", "processor died"])
def test_a_scale_that_fails_is_found_up_to_its_dead_letter(
    call: Call,
    world: FunctionWorld,
    context: FunctionContext,
    fixed_stream: StreamBody,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
    died: bool,
):
    class DownProcessor:
        def process(self, body: Any) -> None:
            raise UnavailableError("no segment store answers")

    _scale(call, world, fixed_stream)
    monkeypatch.setattr(wiring, "request_processor", DownProcessor)
    monkeypatch.setattr(wiring, "sqs_client", lambda: None)
    if died:
        dead_letters.handler({"Records": _records(world, queue=REQUESTS_QUEUE.dead_letter_name)}, context)
    else:
        last = _records(world, received=REQUESTS_QUEUE.max_receive_count)
        assert len(stream_requests.handler({"Records": last}, context)["batchItemFailures"]) == 1
    messages = [str(line.get("message")) for line in lines.of_operation()]
    assert any("is a dead letter" in message for message in messages)
    assert any("no segment store answers" in message for message in messages) is not died
    assert any("message will come again" in message for message in messages) is not died
    (letter,) = call("GET", "/v1/dead-letters").body["letters"]
    assert letter["correlationId"] == IDENTITY


def test_the_lines_of_one_message_have_its_id_only(
    call: Call,
    world: FunctionWorld,
    context: FunctionContext,
    fixed_stream: StreamBody,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
):
    """Two messages of a batch fail, each for its own reason."""

    class DownProcessor:
        def process(self, body: Any) -> None:
            raise UnavailableError(f"{body['stream']} is away")

    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    for name, identity in (("a", "other-1"), ("b", IDENTITY)):
        body = fixed_stream() | {"streamName": name}
        sent = call("POST", "/v1/scopes/s/streams", body, headers={"x-headrace-correlation-id": identity})
        assert sent.status == 201, sent
    monkeypatch.setattr(wiring, "request_processor", DownProcessor)
    monkeypatch.setattr(wiring, "sqs_client", lambda: None)
    records = _records(world)
    assert len(records) == 2
    assert len(stream_requests.handler({"Records": records}, context)["batchItemFailures"]) == 2
    failures = [str(line["message"]) for line in lines.of_operation() if "come again" in str(line.get("message"))]
    assert failures == ["message will come again: b is away"]


def test_queues_and_functions_of_requests_are_in_the_query():
    groups = {group for each in SAVED_QUERIES if each.name == "headrace/one operation" for group in each.log_groups}
    for queue in topology.QUEUES:
        assert f"/aws/lambda/headrace-{queue.function}" in groups
