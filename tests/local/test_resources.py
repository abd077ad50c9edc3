"""What the local stack creates is what the topology declares."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import topology
from headrace.local.aws_emulator import READY_PREFIX
from headrace.local.lambda_host import LambdaHost
from headrace.local.resources import (
    Resources,
    aws_client,
    create_resources,
    is_complete_snapshot,
    load_snapshot,
    save_snapshot,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fresh_endpoints() -> Iterator[tuple[str, str]]:
    """Two emulators with nothing in them."""
    emulators = [
        subprocess.Popen(
            [sys.executable, "-m", "headrace.local.aws_emulator"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    lines = [emulator.stdout.readline().strip() for emulator in emulators if emulator.stdout]
    yield lines[0].removeprefix(READY_PREFIX), lines[1].removeprefix(READY_PREFIX)
    for emulator in emulators:
        emulator.terminate()
        emulator.wait(30)
        assert emulator.stdout is not None
        emulator.stdout.close()


@pytest.fixture(scope="module")
def resources(fresh_endpoints: tuple[str, str]) -> Resources:
    return create_resources(fresh_endpoints[0])


def test_queues(resources: Resources):
    sqs = aws_client("sqs", resources.endpoint)
    names = {url.rpartition("/")[2] for url in sqs.list_queues()["QueueUrls"]}
    assert names == {name for queue in topology.QUEUES for name in (queue.name, queue.dead_letter_name)}
    for queue in topology.QUEUES:
        attributes = sqs.get_queue_attributes(QueueUrl=resources.queue_urls[queue.name], AttributeNames=["All"])[
            "Attributes"
        ]
        assert int(attributes["VisibilityTimeout"]) == queue.visibility_timeout_s
        assert attributes.get("FifoQueue", "false") == str(queue.fifo).lower()
        redrive = json.loads(attributes["RedrivePolicy"])
        assert redrive["maxReceiveCount"] == queue.max_receive_count
        assert redrive["deadLetterTargetArn"].endswith(f":{queue.dead_letter_name}")


def test_table_and_bucket(resources: Resources):
    dynamodb, s3 = aws_client("dynamodb", resources.endpoint), aws_client("s3", resources.endpoint)
    assert dynamodb.list_tables()["TableNames"] == [topology.METADATA_TABLE.name]
    table = dynamodb.describe_table(TableName=topology.METADATA_TABLE.name)["Table"]
    assert [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]] == [
        ("partition", "HASH"),
        ("sort", "RANGE"),
    ]
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [topology.CHUNK_BUCKET.name]


def test_functions_can_be_loaded_and_references_are_declared():
    from headrace.adapters.system_clock import SystemClock

    host = LambdaHost(SystemClock())
    declared = {function.name for function in topology.FUNCTIONS}
    assert set(host._handlers) == declared
    assert all(callable(handler) for handler in host._handlers.values())
    for named in (topology.ROUTES, topology.QUEUES, topology.SCHEDULES):
        assert {declaration.function for declaration in named} <= declared


def test_the_environment_names_what_was_created(resources: Resources):
    environment = resources.environment()
    assert environment["HEADRACE_METADATA_TABLE"] == topology.METADATA_TABLE.name
    assert environment["HEADRACE_CHUNK_BUCKET"] == topology.CHUNK_BUCKET.name
    assert environment["HEADRACE_REQUESTS_QUEUE_URL"].endswith(topology.REQUESTS_QUEUE.name)
    assert environment["HEADRACE_TICKS_QUEUE_URL"].endswith(topology.TICKS_QUEUE.name)
    assert environment["AWS_ENDPOINT_URL"] == resources.endpoint


def test_snapshot_restores_all_data_once(resources: Resources, fresh_endpoints: tuple[str, str], tmp_path: Path):
    dynamodb, s3 = aws_client("dynamodb", resources.endpoint), aws_client("s3", resources.endpoint)
    items = [
        {"partition": {"S": "p"}, "sort": {"S": f"{n:03d}"}, "version": {"N": str(n)}, "body": {"S": "ü" * n}}
        for n in range(60)
    ]
    for item in items:
        dynamodb.put_item(TableName=resources.table, Item=item)
    bodies = {f"a/{n}": bytes([n]) * (n * 1000) for n in range(3)}
    for key, body in bodies.items():
        s3.put_object(Bucket=resources.bucket, Key=key, Body=body, Metadata={"put-id": key})
    directory = tmp_path / "aws"
    assert not is_complete_snapshot(directory)
    save_snapshot(resources, directory)
    assert is_complete_snapshot(directory)

    next_run = create_resources(fresh_endpoints[1])
    load_snapshot(next_run, directory)
    assert not is_complete_snapshot(directory)
    found = aws_client("dynamodb", next_run.endpoint).scan(TableName=next_run.table, ConsistentRead=True)["Items"]
    assert sorted(found, key=_sort_key) == items
    next_s3 = aws_client("s3", next_run.endpoint)
    for key, body in bodies.items():
        stored = next_s3.get_object(Bucket=next_run.bucket, Key=key)
        assert (stored["Body"].read(), stored["Metadata"]) == (body, {"put-id": key})


def _sort_key(item: dict[str, Any]) -> str:
    return str(item["sort"]["S"])
