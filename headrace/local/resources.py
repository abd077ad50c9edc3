"""Creates the resources of `headrace.topology` on the AWS emulator, and keeps snapshots of them between two runs."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session

from headrace import topology
from headrace.adapters.dynamodb.record_item import create_table

REGION = "us-east-1"
ACCESS_KEY = "headrace"
"""Not a number, because emulators may interpret twelve digits as an account."""

_CLIENTS_CONNECTIONS_MAX = 32

_making_client = threading.Lock()
"""A session must not create two clients at the same time."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Names and addresses of everything that was created."""

    endpoint: str
    table: str
    bucket: str
    queue_urls: dict[str, str]

    def environment(self) -> dict[str, str]:
        """The variables that functions, segment stores and curious users need, credentials included."""
        return aws_environment(self.endpoint) | {
            "HEADRACE_METADATA_TABLE": self.table,
            "HEADRACE_CHUNK_BUCKET": self.bucket,
            "HEADRACE_REQUESTS_QUEUE_URL": self.queue_urls[topology.REQUESTS_QUEUE.name],
            "HEADRACE_TABLES_QUEUE_URL": self.queue_urls[topology.TABLES_QUEUE.name],
            "HEADRACE_COMMITS_QUEUE_URL": self.queue_urls[topology.COMMITS_QUEUE.name],
            "HEADRACE_ABORTS_QUEUE_URL": self.queue_urls[topology.ABORTS_QUEUE.name],
            "HEADRACE_TICKS_QUEUE_URL": self.queue_urls[topology.TICKS_QUEUE.name],
            "HEADRACE_SCALING_REPORTS_QUEUE_URL": self.queue_urls[topology.SCALING_REPORTS_QUEUE.name],
            "HEADRACE_CONTAINER_COUNT": str(topology.CONTAINER_COUNT),
            "HEADRACE_BUCKET_COUNT": str(topology.BUCKET_COUNT),
        }


def aws_environment(endpoint: str) -> dict[str, str]:
    """Variables that direct every AWS SDK to the emulator, and never to the user's own account."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": ACCESS_KEY,
        "AWS_SESSION_TOKEN": "",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


def aws_client(service: str, endpoint: str) -> Any:
    """A client of the emulator, independent of the environment variables."""
    from botocore.config import Config

    with _making_client:
        return _session().create_client(
            service,
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=ACCESS_KEY,
            config=Config(max_pool_connections=_CLIENTS_CONNECTIONS_MAX, retries={"total_max_attempts": 3}),
        )


@functools.cache
def _session() -> botocore.session.Session:
    """The session of all clients. A new session would read the service descriptions again: 0.25 s for each client."""
    return botocore.session.get_session()


def create_resources(endpoint: str) -> Resources:
    """Create the table, the bucket, the queues and the dead-letter queues."""
    create_table(topology.METADATA_TABLE.name, aws_client("dynamodb", endpoint))
    aws_client("s3", endpoint).create_bucket(Bucket=topology.CHUNK_BUCKET.name)
    sqs = aws_client("sqs", endpoint)
    queue_urls: dict[str, str] = {}
    for queue in topology.QUEUES:
        queue_urls |= _create_queue(sqs, queue)
    return Resources(endpoint, topology.METADATA_TABLE.name, topology.CHUNK_BUCKET.name, queue_urls)


def _create_queue(sqs: Any, queue: topology.Queue) -> dict[str, str]:
    """The URLs of the queue and of its dead-letter queue, by name."""
    kind = {"FifoQueue": "true"} if queue.fifo else {}
    patience = {"VisibilityTimeout": str(queue.dead_letters.visibility_timeout_s)}
    dead_letters = sqs.create_queue(QueueName=queue.dead_letter_name, Attributes=kind | patience)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead_letters, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = {"deadLetterTargetArn": arn, "maxReceiveCount": queue.max_receive_count}
    attributes = kind | {
        "VisibilityTimeout": str(queue.visibility_timeout_s),
        "RedrivePolicy": json.dumps(redrive),
    }
    url: str = sqs.create_queue(QueueName=queue.name, Attributes=attributes)["QueueUrl"]
    return {queue.name: url, queue.dead_letter_name: dead_letters}


# The metadata table and the chunk bucket as files, between two runs of the local stack.
#
# The stack saves a snapshot after it has stopped all writers. The next start loads and removes it. Messages in queues
# are not saved: the sweeper sends every unfinished intent again, so no request is lost. Dead letters are records of the
# table and so are saved.

_COMPLETE = "complete"
_ITEMS = "items.jsonl"
_OBJECTS = "objects.jsonl"
_ITEMS_PER_WRITE = 25


def is_complete_snapshot(directory: Path) -> bool:
    """Whether the directory has a snapshot that was saved completely."""
    return (directory / _COMPLETE).exists()


def save_snapshot(resources: Resources, directory: Path) -> None:
    """Write all items and objects, and last the file that marks the snapshot as complete."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with (directory / _ITEMS).open("w") as items:
        for item in _items(resources):
            items.write(json.dumps(item) + "\n")
    s3 = aws_client("s3", resources.endpoint)
    with (directory / _OBJECTS).open("w") as objects:
        for number, key in enumerate(_keys(s3, resources.bucket)):
            stored = s3.get_object(Bucket=resources.bucket, Key=key)
            file_name = f"object-{number:06d}"
            with (directory / file_name).open("wb") as body:
                shutil.copyfileobj(stored["Body"], body)
            objects.write(json.dumps({"key": key, "file": file_name, "metadata": stored["Metadata"]}) + "\n")
    (directory / _COMPLETE).touch()


def load_snapshot(resources: Resources, directory: Path) -> None:
    """Fill empty resources. The mark of completeness is removed first, because the files become outdated."""
    (directory / _COMPLETE).unlink()
    dynamodb = aws_client("dynamodb", resources.endpoint)
    batch: list[dict[str, Any]] = []
    with (directory / _ITEMS).open() as items:
        for line in items:
            batch.append({"PutRequest": {"Item": json.loads(line)}})
            if len(batch) == _ITEMS_PER_WRITE:
                dynamodb.batch_write_item(RequestItems={resources.table: batch})
                batch = []
    if batch:
        dynamodb.batch_write_item(RequestItems={resources.table: batch})
    s3 = aws_client("s3", resources.endpoint)
    with (directory / _OBJECTS).open() as objects:
        for line in objects:
            entry = json.loads(line)
            with (directory / entry["file"]).open("rb") as body:
                s3.put_object(Bucket=resources.bucket, Key=entry["key"], Body=body, Metadata=entry["metadata"])
    shutil.rmtree(directory)


def _items(resources: Resources) -> Iterator[dict[str, Any]]:
    dynamodb = aws_client("dynamodb", resources.endpoint)
    for page in dynamodb.get_paginator("scan").paginate(TableName=resources.table, ConsistentRead=True):
        yield from page["Items"]


def _keys(s3: Any, bucket: str) -> Iterator[str]:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        yield from (entry["Key"] for entry in page.get("Contents", []))
