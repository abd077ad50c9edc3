"""The function that copies audit lines into their log group."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import audit_log
from functions.processors.audit_log import BATCH_BYTES_MAX, BATCH_LINES_MAX, LINE_OVERHEAD_BYTES, batches
from headrace.adapters import cloudwatch_logs
from headrace.adapters.cloudwatch_logs import LogStream
from headrace.model.errors import InvalidRequestError, ThrottledError, UnavailableError

DAY_MS = 24 * 60 * 60 * 1_000


class LogsInMemory:
    """CloudWatch Logs with its limits; `fails` are the codes of errors of the next calls."""

    def __init__(self) -> None:
        self.streams: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self.fails: list[str] = []
        self.rejected: dict[str, int] = {}

    def create_log_stream(self, *, logGroupName: str, logStreamName: str) -> None:
        self._fail("CreateLogStream")
        if (logGroupName, logStreamName) in self.streams:
            raise _error("ResourceAlreadyExistsException", "CreateLogStream")
        self.streams[logGroupName, logStreamName] = []

    def put_log_events(
        self, *, logGroupName: str, logStreamName: str, logEvents: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        self._fail("PutLogEvents")
        if (logGroupName, logStreamName) not in self.streams:
            raise _error("ResourceNotFoundException", "PutLogEvents")
        times = [event["timestamp"] for event in logEvents]
        assert times == sorted(times)
        assert len(logEvents) <= 10_000
        assert times[-1] - times[0] < DAY_MS
        assert sum(len(event["message"].encode()) + 26 for event in logEvents) <= 1_048_576
        self.streams[logGroupName, logStreamName] += logEvents
        return {"rejectedLogEventsInfo": self.rejected}

    def _fail(self, operation: str) -> None:
        if self.fails:
            raise _error(self.fails.pop(0), operation)


def _error(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, operation)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> LogsInMemory:
    made = LogsInMemory()
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    monkeypatch.setenv("HEADRACE_AUDIT_LOG_GROUP", "/headrace/audit")
    monkeypatch.setenv("AWS_LAMBDA_LOG_STREAM_NAME", "2026/11/29/[$LATEST]0a1b")
    monkeypatch.setattr(cloudwatch_logs, "_logs_client", lambda: made)
    wiring.forget_services()
    return made


def _delivery(*lines: tuple[int, str], kind: str = "DATA_MESSAGE") -> dict[str, Any]:
    events = [{"id": str(number), "timestamp": time, "message": text} for number, (time, text) in enumerate(lines)]
    delivery = {"messageType": kind, "logGroup": "/aws/lambda/headrace-streams", "logEvents": events}
    return {"awslogs": {"data": base64.b64encode(gzip.compress(json.dumps(delivery).encode())).decode()}}


STREAM = ("/headrace/audit", "2026/11/29/[$LATEST]0a1b")


def test_lines_are_copied_in_the_order_of_time(logs: LogsInMemory, context: FunctionContext):
    audit_log.handler(_delivery((7, '{"audit":1,"b":2}'), (5, '{"audit":1}')), context)
    audit_log.handler(_delivery((6, '{"audit":1,"c":3}')), context)
    assert logs.streams == {
        STREAM: [
            {"timestamp": 5, "message": '{"audit":1}'},
            {"timestamp": 7, "message": '{"audit":1,"b":2}'},
            {"timestamp": 6, "message": '{"audit":1,"c":3}'},
        ]
    }


def test_a_trial_of_the_subscription_copies_nothing(logs: LogsInMemory, context: FunctionContext):
    audit_log.handler(_delivery((5, "CWL CONTROL MESSAGE: Checking health"), kind="CONTROL_MESSAGE"), context)
    assert logs.streams == {}


@pytest.mark.parametrize(
    "event",
    [{}, {"awslogs": {}}, {"awslogs": {"data": "%"}}, {"awslogs": {"data": "AAAA"}}, {"awslogs": {"data": None}}],
)
def test_what_is_no_delivery_is_refused(logs: LogsInMemory, context: FunctionContext, event: dict[str, Any]):
    with pytest.raises(InvalidRequestError):
        audit_log.handler(event, context)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"messageType":"DATA_MESSAGE","logEvents":[{"timestamp":1e999,"message":"{}"}]}',
        '{"messageType":"DATA_MESSAGE","logEvents":[{"timestamp":Infinity,"message":"{}"}]}',
        '{"messageType":"DATA_MESSAGE","logEvents":{"timestamp":5,"message":"{}"}}',
    ],
    ids=["nested", "too large", "infinite", "no list"],
)
def test_what_no_log_can_send_is_refused(logs: LogsInMemory, context: FunctionContext, text: str):
    event = {"awslogs": {"data": base64.b64encode(gzip.compress(text.encode())).decode()}}
    with pytest.raises(InvalidRequestError):
        audit_log.handler(event, context)


def test_a_stream_that_was_deleted_is_made_again(logs: LogsInMemory, context: FunctionContext):
    """Else a warm function copies nothing until Lambda ends it."""
    audit_log.handler(_delivery((5, "{}")), context)
    del logs.streams[STREAM]
    with pytest.raises(UnavailableError):
        audit_log.handler(_delivery((6, "{}")), context)
    audit_log.handler(_delivery((6, "{}")), context)
    assert logs.streams == {STREAM: [{"timestamp": 6, "message": "{}"}]}


@pytest.mark.parametrize(
    ("code", "error"), [("ThrottlingException", ThrottledError), ("ServiceUnavailableException", UnavailableError)]
)
def test_a_failure_makes_lambda_call_again(
    logs: LogsInMemory, context: FunctionContext, code: str, error: type[Exception]
):
    for failing in ([code], ["ResourceAlreadyExistsException", code]):
        logs.fails = list(failing)
        with pytest.raises(error):
            audit_log.handler(_delivery((5, "{}")), context)
    logs.streams[STREAM] = []
    audit_log.handler(_delivery((5, "{}")), context)
    assert logs.streams[STREAM] == [{"timestamp": 5, "message": "{}"}]


def test_a_service_that_is_away_is_unavailable():
    class Away(LogsInMemory):
        def create_log_stream(self, **_: str) -> None:
            raise EndpointConnectionError(endpoint_url="https://logs")

    with pytest.raises(UnavailableError):
        LogStream("g", "s", Away()).put([{"timestamp": 5, "message": "{}"}])


@pytest.mark.parametrize(
    ("rejected", "refused"),
    [
        ({}, 0),
        ({"tooOldLogEventEndIndex": 2}, 2),
        ({"expiredLogEventEndIndex": 1, "tooOldLogEventEndIndex": 3}, 3),
        ({"tooNewLogEventStartIndex": 3}, 1),
        ({"tooOldLogEventEndIndex": 1, "tooNewLogEventStartIndex": 2}, 3),
    ],
)
def test_refused_lines_are_counted(rejected: dict[str, int], refused: int):
    logs = LogsInMemory()
    logs.rejected = rejected
    lines = [{"timestamp": number, "message": "{}"} for number in range(4)]
    assert LogStream("g", "s", logs).put(lines) == refused


@pytest.mark.parametrize(
    ("lines", "sizes"),
    [
        ([(number % 7, "x") for number in range(BATCH_LINES_MAX + 1)], [BATCH_LINES_MAX, 1]),
        ([(1, "x" * (BATCH_BYTES_MAX - LINE_OVERHEAD_BYTES))] * 2, [1, 1]),
        ([(1, "x" * (BATCH_BYTES_MAX // 2 - LINE_OVERHEAD_BYTES))] * 3, [2, 1]),
        ([(1, "\u00e9" * (BATCH_BYTES_MAX // 4))] * 3, [1, 1, 1]),
        ([(DAY_MS, "x"), (0, "x"), (DAY_MS - 1, "x")], [2, 1]),
    ],
)
def test_batches_are_as_large_as_the_service_takes(lines: list[tuple[int, str]], sizes: list[int]):
    made = list(batches([{"timestamp": time, "message": text} for time, text in lines]))
    assert [len(batch) for batch in made] == sizes
    logs = LogsInMemory()
    stream = LogStream("g", "s", logs)
    assert sum(stream.put(batch) for batch in made) == 0
    assert len(logs.streams["g", "s"]) == len(lines)
