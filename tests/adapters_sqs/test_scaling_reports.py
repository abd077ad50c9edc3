"""Scaling reports reach the queue, and a queue that does not answer neither stops nor fills a store."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from headrace.adapters.scaling_report_senders import REPORTS_PER_CALL, SqsScalingReports
from headrace.codec.scaling_report_message import parse_report, report_message
from headrace.model.errors import InvalidRequestError
from headrace.model.rates import ScalingReport

PATIENCE_S = 30.0


def _report(number: int) -> ScalingReport:
    return ScalingReport(f"scope/stream/{number}.#epoch.0", "hot" if number % 2 else "cold", 1_000 + number, number)


class Queue:
    """Takes batches, or fails as it is told; `took` is set with each batch."""

    def __init__(self) -> None:
        self.batches: list[list[ScalingReport]] = []
        self.failures: list[Exception | set[int]] = []
        self.tried = 0
        self.is_away = False
        self.changed = threading.Condition()

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        with self.changed:
            self.tried += 1
            self.changed.notify_all()
            if self.is_away:
                raise EndpointConnectionError(endpoint_url="http://sqs")
            failure = self.failures.pop(0) if self.failures else set()
            if isinstance(failure, Exception):
                raise failure
            taken = [entry for entry in Entries if int(entry["Id"]) not in failure]
            self.batches.append([parse_report(json.loads(entry["MessageBody"])) for entry in taken])
            return {
                "Failed": [{"Id": str(number), "Code": "InternalError", "SenderFault": False} for number in failure]
            }

    @property
    def reports(self) -> list[ScalingReport]:
        return [report for batch in self.batches for report in batch]

    def wait_for(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.reports) >= number, PATIENCE_S)


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def sender(queue: Queue) -> Iterator[SqsScalingReports]:
    reports = SqsScalingReports("url", queue, waiting_max=25, retry_first_s=0.001)  # type: ignore[arg-type]
    yield reports
    reports.stop(PATIENCE_S)


def test_reports_are_sent_in_order_in_batches(sender: SqsScalingReports, queue: Queue):
    for number in range(23):
        sender.report(_report(number))
    assert queue.reports == [], "nothing is sent on the caller's thread"
    sender.start()
    queue.wait_for(23)
    sender.stop(PATIENCE_S)
    assert queue.reports == [_report(number) for number in range(23)]
    assert [len(batch) for batch in queue.batches] == [REPORTS_PER_CALL, REPORTS_PER_CALL, 3]
    assert (sender.sent, sender.dropped) == (23, 0)


def test_reports_come_again_after_a_failure(sender: SqsScalingReports, queue: Queue):
    queue.failures = [
        ClientError({"Error": {"Code": "RequestThrottled"}}, "SendMessageBatch"),
        EndpointConnectionError(endpoint_url="http://sqs"),
        {1, 3},
    ]
    sender.start()
    for number in range(5):
        sender.report(_report(number))
    queue.wait_for(5)
    sender.stop(PATIENCE_S)
    assert sorted(report.at_ms for report in queue.reports) == [1_000 + number for number in range(5)]
    assert (sender.sent, sender.dropped) == (5, 0)


def test_the_oldest_reports_are_dropped_while_the_queue_is_away(
    sender: SqsScalingReports, queue: Queue, caplog: pytest.LogCaptureFixture
):
    queue.is_away = True
    sender.start()
    for number in range(200):
        sender.report(_report(number))
    with queue.changed:
        assert queue.changed.wait_for(lambda: queue.tried > 3, PATIENCE_S)
        queue.is_away = False
    queue.wait_for(25)
    sender.stop(PATIENCE_S)
    assert [report.at_ms - 1_000 for report in queue.reports] == list(range(175, 200))
    assert (sender.sent, sender.dropped) == (25, 175)
    assert "event=scaling_reports_overflow waiting_max=25" in caplog.messages


def test_a_stop_sends_what_waits(sender: SqsScalingReports, queue: Queue):
    for number in range(12):
        sender.report(_report(number))
    sender.start()
    sender.stop(PATIENCE_S)
    assert len(queue.reports) == 12
    sender.report(_report(12))
    sender.stop(PATIENCE_S)
    assert len(queue.reports) == 12, "a report after the stop is lost, and nobody waits for it"


def test_a_stop_does_not_wait_for_a_queue_that_is_away(
    sender: SqsScalingReports, queue: Queue, caplog: pytest.LogCaptureFixture
):
    queue.is_away = True
    for number in range(12):
        sender.report(_report(number))
    sender.start()
    sender.stop(PATIENCE_S)
    assert sender.dropped == 12
    assert "event=scaling_reports_dropped reports=12" in caplog.messages


def test_a_sender_that_never_started_stops(queue: Queue):
    sender = SqsScalingReports("url", queue)  # type: ignore[arg-type]
    sender.report(_report(0))
    sender.stop(PATIENCE_S)
    assert (queue.tried, sender.dropped) == (0, 1)


def test_a_real_client_sends_what_the_controller_reads(aws_environment: dict[str, str]):
    with mock_aws():
        client = boto3.client("sqs", region_name="us-east-1")
        url = client.create_queue(QueueName=f"reports-{uuid.uuid4()}")["QueueUrl"]
        sender = SqsScalingReports(url, client)
        for number in range(3):
            sender.report(_report(number))
        sender.start()
        sender.stop(PATIENCE_S)
        messages = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        bodies = [parse_report(json.loads(message["Body"])) for message in messages]
    assert sorted(bodies, key=lambda report: report.at_ms) == [_report(number) for number in range(3)]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "warm"},
        {"kind": 1},
        {"at": "now"},
        {"at": True},
        {"at": -1},
        {"splits": -1},
        {"silent": 0},
        {"segment": None},
        {"more": 1},
    ],
)
def test_what_is_no_report_is_refused(change: dict[str, Any]):
    message = report_message(_report(1))
    assert parse_report(message) == _report(1)
    with pytest.raises(InvalidRequestError):
        parse_report({**message, **change})
    with pytest.raises(InvalidRequestError):
        parse_report({})
