"""The processor of scaling reports: what is worked on, what comes again, and what can only be a dead letter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import scaling_reports
from functions.processors.batches import retry_delay_s
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.codec.scaling_report_message import report_message
from headrace.controller.services.auto_scaling import ReportOutcome
from headrace.model.errors import ConflictError
from headrace.model.rates import COOLDOWN_S, ScalingReport
from headrace.model.scaling import REPORT_VALID_MS
from headrace.topology import SCALING_REPORTS_QUEUE

ARN = "arn:aws:sqs:us-east-1:123456789012:headrace-scaling-reports"


class FakeSqs:
    """Notes when failed messages come again."""

    def __init__(self) -> None:
        self.visibility: dict[str, int] = {}

    def get_queue_url(self, QueueName: str) -> dict[str, str]:
        return {"QueueUrl": f"https://sqs/{QueueName}"}

    def change_message_visibility_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.visibility |= {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in Entries}
        return {}


class FakeService:
    """Is busy with one segment."""

    def __init__(self) -> None:
        self.handled: list[ScalingReport] = []

    def handle(self, report: ScalingReport) -> ReportOutcome:
        if report.segment == "s/busy/0":
            raise ConflictError("SCALING")
        self.handled.append(report)
        return ReportOutcome.KEPT


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> FakeSqs:
    fake = FakeSqs()
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    monkeypatch.setattr(wiring, "sqs_client", lambda: fake)
    store = MemoryMetadataStore()
    monkeypatch.setattr(wiring, "metadata_store", lambda: store)
    wiring.forget_services()
    return fake


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, sqs: FakeSqs) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(wiring, "auto_scaling_service", lambda: fake)
    return fake


def _record(identifier: str, body: str, received: int = 1) -> dict[str, Any]:
    return {
        "messageId": identifier,
        "receiptHandle": f"handle-{identifier}",
        "body": body,
        "attributes": {"ApproximateReceiveCount": str(received)},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": ARN,
        "awsRegion": "us-east-1",
    }


def _report(segment: str, kind: Any = "hot") -> str:
    return json.dumps(report_message(ScalingReport(segment, kind, 5, 2)))


def test_each_report_is_worked_on_and_only_the_failed_come_again(
    service: FakeService, sqs: FakeSqs, context: FunctionContext
):
    records = [
        _record("1", _report("s/t/0")),
        _record("2", _report("s/busy/0"), received=3),
        _record("3", "no report"),
        _record("4", _report("s/t/1", "cold")),
    ]
    response = scaling_reports.handler({"Records": records}, context)
    assert [failure["itemIdentifier"] for failure in response["batchItemFailures"]] == ["2", "3"]
    assert [(report.segment, report.kind) for report in service.handled] == [("s/t/0", "hot"), ("s/t/1", "cold")]
    assert sqs.visibility == {"handle-2": retry_delay_s(3), "handle-3": retry_delay_s(1)}


def test_report_expires_before_it_becomes_a_dead_letter():
    waits_s = [retry_delay_s(count) for count in range(1, SCALING_REPORTS_QUEUE.max_receive_count)]
    assert sum(waits_s) > REPORT_VALID_MS / 1000
    assert REPORT_VALID_MS / 1000 <= COOLDOWN_S


def test_the_service_scales_the_stream(world: FunctionWorld, call: Call, sqs: FakeSqs, context: FunctionContext):
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    policy = {"type": "BY_RATE_IN_EVENTS_PER_SEC", "targetRate": 10, "scaleFactor": 2, "minSegments": 1}
    assert call("POST", "/v1/scopes/s/streams", {"streamName": "t", "scalingPolicy": policy}).status == 201
    world.work()
    now_ms = wiring.clock().now_ms()
    message = json.dumps(report_message(ScalingReport("s/t/0.#epoch.0", "hot", now_ms, 2)))
    assert scaling_reports.handler({"Records": [_record("1", message)]}, context) == {"batchItemFailures": []}
    world.work()
    assert call("GET", "/v1/scopes/s/streams/t").body["epoch"] == 1
    assert len(call("GET", "/v1/scopes/s/streams/t/segments").body["segments"]) == 2
