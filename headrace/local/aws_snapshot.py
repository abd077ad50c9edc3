"""The metadata table and the chunk bucket as files, between two runs of the local stack.

The stack saves a snapshot after it has stopped all writers. The next start loads and removes it. Messages in queues are
not saved: the sweeper sends every unfinished intent again, so no request is lost. Dead letters are records of the table
and so are saved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.local.resources import Resources, aws_client

_COMPLETE = "complete"
_ITEMS = "items.jsonl"
_OBJECTS = "objects.jsonl"
_ITEMS_PER_WRITE = 25


def is_complete(directory: Path) -> bool:
    """Whether the directory has a snapshot that was saved completely."""
    return (directory / _COMPLETE).exists()


def save(resources: Resources, directory: Path) -> None:
    """Write all items and objects, and last the file that marks the snapshot as complete."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with (directory / _ITEMS).open("w") as items:
        for item in _items(resources):
            items.write(json.dumps(item) + "\n")
    s3 = aws_client("s3", resources.endpoint)
    with (directory / _OBJECTS).open("w") as objects:
        for number, key in enumerate(_keys(s3, resources.bucket)):
            found = s3.get_object(Bucket=resources.bucket, Key=key)
            file_name = f"object-{number:06d}"
            with (directory / file_name).open("wb") as body:
                shutil.copyfileobj(found["Body"], body)
            objects.write(json.dumps({"key": key, "file": file_name, "metadata": found["Metadata"]}) + "\n")
    (directory / _COMPLETE).touch()


def load(resources: Resources, directory: Path) -> None:
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
        yield from (found["Key"] for found in page.get("Contents", []))
