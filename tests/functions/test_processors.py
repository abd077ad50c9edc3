"""Queue processors: what is reported as failed, when it comes again, and what a minute of ticks looks like."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld, StreamBody
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import schedule_ticks, stream_requests, ticks
from functions.processors.batches import RETRY_MAX_S, retry_delay_s
from functions.processors.tick_messages import parse_tick, tick_message
from functions.processors.tick_work import RESEND_AFTER_MS, TICK_WORK
from headrace import topology
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.controller.ticks.due_work import LEASE_MS
from headrace.model.errors import CorruptError, InvalidRequestError, UnavailableError

SQS_DELAY_MAX_S = 900
ARN = "arn:aws:sqs:us-east-1:123456789012:headrace-requests.fifo"


class FakeSqs:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.visibility: dict[str, int] = {}
        self.sent: list[dict[str, Any]] = []
        self.refuse = False

    def get_queue_url(self, QueueName: str) -> dict[str, str]:
        return {"QueueUrl": f"https://sqs/{QueueName}"}

    def change_message_visibility_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        assert QueueUrl.startswith("https://sqs/headrace-")
        assert len(Entries) <= 10
        if self.refuse:
            raise ConnectionError("no queue")
        self.visibility |= {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in Entries}
        return {}

    def send_message(self, QueueUrl: str, MessageBody: str) -> dict[str, Any]:
        assert QueueUrl == "https://sqs/ticks"
        self.sent.append({"MessageBody": MessageBody})
        return {}

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        assert QueueUrl == "https://sqs/ticks"
        assert len(Entries) <= 10
        self.sent += Entries
        return {"Failed": [{"Id": Entries[0]["Id"], "Code": "Throttled"}]} if self.refuse else {}


class FakeProcessor:
    """Fails as it is told, by the name of the stream."""

    def __init__(self) -> None:
        self.failures: dict[str, Exception] = {}
        self.worked: list[str] = []

    def process(self, body: dict[str, Any]) -> None:
        if body["stream"] in self.failures:
            raise self.failures[body["stream"]]
        self.worked.append(body["request"])


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> FakeSqs:
    fake = FakeSqs()
    store = MemoryMetadataStore()
    monkeypatch.setattr(wiring, "metadata_store", lambda: store)
    wiring.forget_services()
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    monkeypatch.setenv("HEADRACE_TICKS_QUEUE_URL", "https://sqs/ticks")
    monkeypatch.setattr(wiring, "sqs_client", lambda: fake)
    return fake


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, sqs: FakeSqs) -> FakeProcessor:
    fake = FakeProcessor()
    monkeypatch.setattr(wiring, "request_processor", lambda: fake)
    return fake


def record(identifier: str, stream: str, body: str | None = None, received: int = 1) -> dict[str, Any]:
    text = json.dumps({"kind": "seal_stream", "scope": "s", "stream": stream, "request": identifier})
    return {
        "messageId": identifier,
        "receiptHandle": f"handle-{identifier}",
        "body": text if body is None else body,
        "attributes": {"MessageGroupId": f"s/{stream}", "ApproximateReceiveCount": str(received)},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": ARN,
        "awsRegion": "us-east-1",
    }


def failed(response: dict[str, Any]) -> list[str]:
    return [failure["itemIdentifier"] for failure in response["batchItemFailures"]]


def test_a_failure_stops_its_stream_and_no_other(processor: FakeProcessor, sqs: FakeSqs, context: FunctionContext):
    processor.failures["bad"] = UnavailableError("store restarts")
    event = {"Records": [record("1", "bad"), record("2", "good"), record("3", "bad"), record("4", "good")]}
    assert failed(stream_requests.handler(event, context)) == ["1", "3"]
    assert processor.worked == ["2", "4"]


def test_failed_messages_of_a_group_get_one_short_delay(
    processor: FakeProcessor, sqs: FakeSqs, context: FunctionContext
):
    processor.failures["bad"] = UnavailableError("store restarts")
    event = {"Records": [record("1", "bad", received=4), record("2", "bad", received=1)]}
    stream_requests.handler(event, context)
    assert sqs.visibility == {"handle-1": retry_delay_s(4), "handle-2": retry_delay_s(4)}


@pytest.mark.parametrize("body", ["not json", "[]", "[" * 100_000])
def test_malformed_message_fails_alone(processor: FakeProcessor, context: FunctionContext, body: str):
    event = {"Records": [record("1", "x", body=body), record("2", "good")]}
    assert failed(stream_requests.handler(event, context)) == ["1"]


@pytest.mark.parametrize("error", [CorruptError("bits"), RuntimeError("bug")])
def test_batch_of_failures_is_reported_and_not_raised(
    processor: FakeProcessor, context: FunctionContext, error: Exception
):
    processor.failures["bad"] = error
    assert failed(stream_requests.handler({"Records": [record("1", "bad")]}, context)) == ["1"]


def test_report_is_complete_if_the_queue_does_not_answer(
    processor: FakeProcessor, sqs: FakeSqs, context: FunctionContext
):
    processor.failures["bad"] = UnavailableError("store restarts")
    sqs.refuse = True
    assert failed(stream_requests.handler({"Records": [record("1", "bad")]}, context)) == ["1"]


def test_delays_grow_and_are_bounded():
    delays = [retry_delay_s(count) for count in range(200)]
    assert delays == sorted(delays)
    assert delays[1] == 1
    assert delays[-1] == RETRY_MAX_S


def _ticks_of_a_minute(sqs: FakeSqs) -> Counter[tuple[str, int]]:
    return Counter(parse_tick(json.loads(message["MessageBody"])) for message in sqs.sent)


def test_a_minute_has_all_ticks_that_are_due_in_it(sqs: FakeSqs, context: FunctionContext):
    assert schedule_ticks.handler({}, context) == {"sent": len(sqs.sent)}
    assert len({message["Id"] for message in sqs.sent}) == len(sqs.sent)
    assert all(0 <= message["DelaySeconds"] <= SQS_DELAY_MAX_S for message in sqs.sent)
    every_minute = [tick for tick in topology.TICKS if tick.every_s <= 60]
    wanted = {(tick.kind, bucket): 60 // tick.every_s for tick in every_minute for bucket in range(tick.buckets)}
    sent = _ticks_of_a_minute(sqs)
    assert {key: sent[key] for key in wanted} == wanted


@pytest.mark.parametrize("every_s", [10, 15, 60, 120, 300, 900])
def test_the_ticks_of_a_bucket_come_at_one_distance(every_s: int):
    tick = topology.Tick("some", every_s, buckets=8)
    for bucket in range(8):
        times = [60 * minute + delay for minute in range(60) for delay in tick.delays_s(bucket, minute)]
        assert {after - before for before, after in itertools.pairwise(times)} == {every_s}
        assert len(times) == 3600 // every_s


def test_every_declared_kind_of_tick_can_be_worked_on():
    assert set(TICK_WORK) == {tick.kind for tick in topology.TICKS}
    assert len({tick.kind for tick in topology.TICKS}) == len(topology.TICKS)
    for tick in topology.TICKS:
        assert 60 % tick.every_s == 0 or (tick.every_s % 60 == 0 and tick.every_s <= SQS_DELAY_MAX_S)
        assert 1 <= tick.buckets <= topology.BUCKET_COUNT


def test_lease_is_longer_than_the_time_out_of_its_function():
    assert topology.function(topology.TICKS_QUEUE.function).timeout_s * 1000 < LEASE_MS


@pytest.mark.parametrize("more", [True, False])
def test_a_tick_that_left_work_undone_is_queued_again(
    sqs: FakeSqs, context: FunctionContext, monkeypatch: pytest.MonkeyPatch, more: bool
):
    worked: list[int] = []

    def work(bucket: int) -> bool:
        worked.append(bucket)
        return more

    monkeypatch.setattr(ticks, "TICK_WORK", {"resend-intents": work})
    body = tick_message("resend-intents", 3)
    assert failed(ticks.handler({"Records": [record("1", "-", body=json.dumps(body))]}, context)) == []
    assert worked == [3]
    assert [json.loads(message["MessageBody"]) for message in sqs.sent] == ([body] if more else [])


def test_a_changed_number_of_buckets_fails_every_tick(
    world: FunctionWorld, sqs: FakeSqs, context: FunctionContext, monkeypatch: pytest.MonkeyPatch
):
    """Also those of the processes that follow; with the former number the work goes on."""
    worked: list[int] = []
    monkeypatch.setattr(ticks, "TICK_WORK", {"resend-intents": worked.append})
    event = {"Records": [record("1", "-", body=json.dumps(tick_message("resend-intents", 3)))]}
    assert failed(ticks.handler(event, context)) == []
    for buckets, refused in ((16, ["1"]), (16, ["1"]), (8, [])):
        monkeypatch.setattr(topology, "BUCKET_COUNT", buckets)
        wiring.forget_services()  # as in a process that has just started
        assert failed(ticks.handler(event, context)) == refused
    assert worked == [3, 3]


def test_ticks_that_were_refused_fail_the_schedule(sqs: FakeSqs, context: FunctionContext):
    sqs.refuse = True
    with pytest.raises(UnavailableError, match="refused"):
        schedule_ticks.handler({}, context)


def test_a_tick_sends_lost_intents_of_its_bucket_again(
    sqs: FakeSqs,
    world: FunctionWorld,
    call: Call,
    fixed_stream: StreamBody,
    context: FunctionContext,
    monkeypatch: pytest.MonkeyPatch,
):
    call("POST", "/v1/scopes", {"scopeName": "s"})
    call("POST", "/v1/scopes/s/streams", fixed_stream())
    lost = world.queue.receive()
    world.queue.acknowledge(lost[0].receipt)
    later_ms = wiring.clock().now_ms() + RESEND_AFTER_MS + 1
    monkeypatch.setattr(wiring, "clock", lambda: FixedClock(later_ms))
    records = [
        record(str(bucket), "-", body=json.dumps(tick_message("resend-intents", bucket)))
        for bucket in range(topology.BUCKET_COUNT)
    ]
    assert failed(ticks.handler({"Records": records}, context)) == []
    assert [message.body for message in world.queue.receive()] == [lost[0].body]


class FixedClock:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "resend-intents"},
        {"kind": "other", "bucket": 0},
        {"kind": ["resend-intents"], "bucket": 0},
        {"kind": "resend-intents", "bucket": "0"},
        {"kind": "resend-intents", "bucket": True},
        {"kind": "resend-intents", "bucket": -1},
        {"kind": "resend-intents", "bucket": topology.BUCKET_COUNT},
        {"kind": "resend-intents", "bucket": 0, "more": 1},
    ],
)
def test_malformed_tick_is_refused(body: dict[str, Any]):
    with pytest.raises(InvalidRequestError):
        parse_tick(body)
