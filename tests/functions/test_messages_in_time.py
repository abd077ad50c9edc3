"""Messages that are sent when little time is left: what is left over, and what a tick has found."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from functions_in_memory import FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import stream_requests, tick_work
from functions.time_limits import RESERVE_S
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.sqs import SqsRequestQueue
from headrace.metadata.intent import Intent, create_intent_write
from headrace.metadata.request_messages import request_message_body
from headrace.model.backoff import bucket_of_stream
from headrace.model.requests import PendingRequest, RequestKind
from headrace.ports.clock import WorkLeftError, is_time_short, require_time_for_piece

FUNCTION_S = 60.0
INTENT = Intent("s", "t", PendingRequest(RequestKind.SEAL_STREAM, "seal-1"), 0)


class Client:
    """SQS, as far as it is asked for here."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send_message(self, **message: Any) -> None:
        self.sent.append(message)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock()
    monkeypatch.setattr(wiring, "clock", lambda: made)
    return made


@pytest.fixture
def client(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Behind the real adapter."""
    made = Client()
    monkeypatch.setattr(wiring, "request_queue", lambda: SqsRequestQueue("url", made))  # type: ignore[arg-type]
    return made


def test_a_tick_sends_what_waits_for_its_message(world: FunctionWorld, clock: ManualClock, client: Client):
    world.store.write(create_intent_write(INTENT))
    clock.advance(tick_work.RESEND_AFTER_MS + 1)
    assert tick_work.TICK_WORK["resend-intents"](bucket_of_stream("s/t", topology.BUCKET_COUNT)) is False
    assert [json.loads(message["MessageBody"]) for message in client.sent] == [request_message_body(INTENT)]


@pytest.mark.parametrize("piece_s", [FUNCTION_S - RESERVE_S - 4, FUNCTION_S - RESERVE_S - 0.5])
def test_what_is_left_over_is_queued(
    clock: ManualClock, client: Client, piece_s: float, monkeypatch: pytest.MonkeyPatch
):
    """The last piece ends when time is short, or when it is nearly over."""

    def work(_body: Any) -> None:
        clock.advance(round(piece_s * 1000))
        assert is_time_short()
        with pytest.raises(WorkLeftError):
            require_time_for_piece("work")
        require_time_for_piece("work")

    monkeypatch.setattr(wiring, "request_processor", lambda: SimpleNamespace(process=work))
    body = request_message_body(INTENT)
    assert stream_requests.handler({"Records": [_record(body)]}, _context(clock)) == {"batchItemFailures": []}
    assert [json.loads(message["MessageBody"]) for message in client.sent] == [body]


def _context(clock: ManualClock) -> FunctionContext:
    end_s = clock.monotonic_s() + FUNCTION_S
    return FunctionContext(lambda: round((end_s - clock.monotonic_s()) * 1000))


def _record(body: Any) -> dict[str, Any]:
    return {
        "messageId": "m",
        "receiptHandle": "handle",
        "body": json.dumps(body),
        "attributes": {"MessageGroupId": "s/t", "ApproximateReceiveCount": "1"},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:headrace-requests.fifo",
        "awsRegion": "us-east-1",
    }
