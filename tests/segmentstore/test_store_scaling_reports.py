"""What a store process does with its scaling reports: a line in the log, and a message if it is told of a queue."""

from __future__ import annotations

import json
import uuid
from typing import Any

import boto3
import pytest
from moto import mock_aws

from headrace.codec.scaling_report_message import parse_report
from headrace.model.rates import ScalingReport
from segmentstore_fargate.config import read_config
from segmentstore_fargate.scaling import StoreScalingReports

pytestmark = pytest.mark.anyio

REQUIRED = {
    "HEADRACE_STORE_ID": "store-1",
    "HEADRACE_DATA_DIR": "/data",
    "HEADRACE_METADATA_TABLE": "table",
    "HEADRACE_CHUNK_BUCKET": "bucket",
}
HOT = ScalingReport("s/t/0.#epoch.0", "hot", 5, splits=2)


@pytest.mark.parametrize(("variables", "url"), [({}, None), ({"HEADRACE_SCALING_REPORTS_QUEUE_URL": "u"}, "u")])
def test_the_queue_comes_from_the_environment(variables: dict[str, str], url: str | None):
    assert read_config({**REQUIRED, **variables}).scaling_reports_queue_url == url


async def _report_and_stop(reports: StoreScalingReports) -> None:
    reports.start()
    reports.report(HOT)
    await reports.stop()


async def test_without_a_queue_reports_are_logged(caplog: pytest.LogCaptureFixture):
    reports = StoreScalingReports(None)
    with caplog.at_level("INFO"):
        await _report_and_stop(reports)
    assert caplog.messages == ["event=segment_hot segment='s/t/0.#epoch.0' splits=2 at_ms=5"]
    assert reports.dropped == 0


async def test_with_a_queue_they_are_sent_too_before_the_stop_ends(
    caplog: pytest.LogCaptureFixture, aws_environment: dict[str, str]
):
    with mock_aws():
        sqs: Any = boto3.client("sqs", region_name="us-east-1")
        url = sqs.create_queue(QueueName=f"reports-{uuid.uuid4()}")["QueueUrl"]
        reports = StoreScalingReports(url)
        with caplog.at_level("INFO"):
            await _report_and_stop(reports)
        (message,) = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert parse_report(json.loads(message["Body"])) == HOT
    assert "event=segment_hot segment='s/t/0.#epoch.0' splits=2 at_ms=5" in caplog.messages
    assert reports.dropped == 0
