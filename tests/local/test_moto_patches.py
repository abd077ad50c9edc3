"""Each patch of moto, by the harm that it prevents. Without the patches these tests fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from moto_programs import printed_lines

from headrace.local.resources import aws_client

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.literals import KeyTypeType
    from mypy_boto3_dynamodb.type_defs import PutTypeDef, UpdateTypeDef
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType
    from mypy_boto3_sqs.type_defs import MessageTypeDef

CLIENTS = 6
ROUNDS = 25
LONGEST_POLL_S = 20

LOOK_UPS = """
from moto import backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from headrace.local import moto_patches
moto_patches.apply()
listed, listing = [], backends.list_of_moto_modules
backends.list_of_moto_modules = lambda: listed.append(1) or listing()
application = DomainDispatcherApplication(lambda service: service)
for service in ("sqs", "dynamodb") * 2:
    print(application.get_backend_for_host(f"{service}.us-east-1.amazonaws.com"))
print("looked through moto for", len(listed), "hosts")
"""

ENTITY_TAGS = """
from moto.s3 import models
from headrace.local import moto_patches
moto_patches.apply()
digested, digest = [], models.md5_hash
models.md5_hash = lambda *given: digested.append(1) or digest(*given)
first, second = (models.FakeKey("name", b"content", "123456789012", "us-east-1") for _ in range(2))
print(first.etag == first.etag, first.etag != second.etag, len(first.etag), len(digested))
"""

LISTED_VERSIONS = """
import tempfile
from moto.s3 import models
from headrace.local import moto_patches
moto_patches.apply()
backend = models.S3Backend("us-east-1", "123456789012")
backend.create_bucket("bucket", "us-east-1")
backend.put_bucket_versioning("bucket", "Enabled")
backend.put_object("bucket", "name", b"content")
opened, open_file = [], tempfile.SpooledTemporaryFile
tempfile.SpooledTemporaryFile = lambda *given, **named: opened.append(1) or open_file(*given, **named)
versions = backend.list_object_versions("bucket")[0]
print([(each.name, each.is_latest, each.size) for each in versions], len(opened))
del versions
print(backend.get_object("bucket", "name").value)
"""

ATTRIBUTES = """
import boto3
from moto import mock_aws
from moto.core.serialize import BaseJSONSerializer
from headrace.local import moto_patches
converted, convert = [], BaseJSONSerializer._serialize_type_structure
BaseJSONSerializer._serialize_type_structure = lambda *given: converted.append(given[-1]) or convert(*given)
moto_patches.apply()
item = {
    "id": {"S": "a"}, "empty": {"S": ""}, "number": {"N": "1"}, "bytes": {"B": b"raw"}, "yes": {"BOOL": True},
    "list": {"L": [{"S": "b"}]}, "map": {"M": {"c": {"N": "2"}}}, "set": {"SS": ["d"]}, "none": {"NULL": True},
}
with mock_aws():
    client = boto3.client(
        "dynamodb", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    key = dict(AttributeName="id", KeyType="HASH"), dict(AttributeName="id", AttributeType="S")
    client.create_table(TableName="t", KeySchema=key[:1], AttributeDefinitions=key[1:], BillingMode="PAY_PER_REQUEST")
    client.put_item(TableName="t", Item=item)
    converted.clear()
    print(client.get_item(TableName="t", Key={"id": item["id"]})["Item"] == item)
    print(sorted(set(converted) & set(item)))
"""

LONG_POLLS = """
from moto.sqs.models import SQSBackend
looks, receive = [], SQSBackend.receive_message
SQSBackend.receive_message = lambda *given: looks.append(1) or receive(*given)
from headrace.local import moto_patches
moto_patches.apply()
backend = SQSBackend("us-east-1", "123456789012")
backend.create_queue("ticks")

def found(wait_s):
    del looks[:]
    bodies = [message.body for message in backend.receive_message("ticks", 10, wait_s, 30)]
    print(*bodies, len(looks))

for number in range(3):
    backend.send_message("ticks", f"late {number}", delay_seconds=600)
found(1)
backend.send_message("ticks", "after 2 s", delay_seconds=2)
found(20)
"""

MESSAGES = """
from moto.sqs import models
from headrace.local import moto_patches
moto_patches.apply()
backend = models.SQSBackend("us-east-1", "123456789012")
queue = backend.create_queue("messages")
for body in ("forgotten", "kept", "in work", "to come"):
    backend.send_message("messages", body, delay_seconds=600 if body == "to come" else 0)
queue._messages[0].sent_timestamp -= 1000 * queue.message_retention_period
queue._messages[2].change_visibility(600)
models.Queue.attributes = property(lambda queue: 1 / 0)
print([message.body for message in backend.receive_message("messages", 1, 0, 30)])
print([message.body for message in backend.receive_message("messages", 1, 0, 30)])
print([message.body for message in queue.messages], queue.approximate_number_of_messages_delayed)
"""

BODIES = """
import io
from werkzeug.exceptions import ClientDisconnected
from werkzeug.wsgi import LimitedStream
from headrace.local import moto_patches
moto_patches.apply()

class Body(io.BytesIO):
    reads = 0
    def read(self, *given):
        self.reads += 1
        return super().read(*given)

body = Body(bytes(range(250)) * 4000 + b"the next request")
limited = LimitedStream(body, 1_000_000)
print(limited.read(10) + limited.read() == bytes(range(250)) * 4000, body.reads, limited.read())
try:
    LimitedStream(Body(b"cut off"), 100).read()
except ClientDisconnected:
    print("disconnected")
"""


@pytest.fixture
def table(dynamodb: DynamoDBClient, unique: str) -> str:
    keys: list[tuple[str, KeyTypeType]] = [("partition", "HASH"), ("sort", "RANGE")]
    dynamodb.create_table(
        TableName=unique,
        KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
        BillingMode="PAY_PER_REQUEST",
    )
    return unique


def key(name: str) -> dict[str, Any]:
    return {"partition": {"S": "p"}, "sort": {"S": name}}


def number(dynamodb: DynamoDBClient, table: str, name: str) -> int:
    item = dynamodb.get_item(TableName=table, Key=key(name), ConsistentRead=True).get("Item")
    return int(item["n"]["N"]) if item else 0


def at_once(work: Callable[[int], None]) -> None:
    """Runs `work(client)` in CLIENTS threads; what one raises is raised."""
    with ThreadPoolExecutor(CLIENTS) as threads:
        for running in [threads.submit(work, client) for client in range(CLIENTS)]:
            running.result()


def add(table: str, name: str) -> UpdateTypeDef:
    return {
        "TableName": table,
        "Key": key(name),
        "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }


def put_if(table: str, name: str, before: int) -> PutTypeDef:
    condition = "n = :before" if before else "attribute_not_exists(n)"
    item = key(name) | {"n": {"N": str(before + 1)}}
    put: PutTypeDef = {"TableName": table, "Item": item, "ConditionExpression": condition}
    if before:
        put["ExpressionAttributeValues"] = {":before": {"N": str(before)}}
    return put


def test_concurrent_updates_lose_nothing(aws_endpoint: str, dynamodb: DynamoDBClient, table: str):
    def work(_client: int) -> None:
        own = aws_client("dynamodb", aws_endpoint)
        for _ in range(ROUNDS):
            own.update_item(**add(table, "counter"))

    at_once(work)
    assert number(dynamodb, table, "counter") == CLIENTS * ROUNDS


def test_concurrent_transactions_and_updates_are_not_lost(aws_endpoint: str, dynamodb: DynamoDBClient, table: str):
    """Half of the clients move two numbers in step, which often fails; the others count beside them."""
    committed: list[int] = []

    def work(client: int) -> None:
        own = aws_client("dynamodb", aws_endpoint)
        for _ in range(ROUNDS):
            if client % 2:
                own.update_item(**add(table, f"counter-{client}"))
                continue
            before = number(own, table, "left")
            moves = [{"Put": put_if(table, name, before)} for name in ("left", "right")]
            try:
                own.transact_write_items(TransactItems=moves)
            except own.exceptions.TransactionCanceledException:
                continue
            committed.append(client)

    at_once(work)
    assert number(dynamodb, table, "left") == number(dynamodb, table, "right") == len(committed)
    for client in range(1, CLIENTS, 2):
        assert number(dynamodb, table, f"counter-{client}") == ROUNDS


def test_failed_transaction_restores_only_its_own_items(dynamodb: DynamoDBClient, table: str):
    dynamodb.put_item(TableName=table, Item=key("changed") | {"n": {"N": "1"}})
    dynamodb.put_item(TableName=table, Item=key("deleted") | {"n": {"N": "1"}})
    with pytest.raises(ClientError, match="TransactionCanceled"):
        dynamodb.transact_write_items(
            TransactItems=[
                {"Update": add(table, "changed")},
                {"Delete": {"TableName": table, "Key": key("deleted")}},
                {"Put": {"TableName": table, "Item": key("new") | {"n": {"N": "1"}}}},
                {"Put": put_if(table, "changed-elsewhere", 7)},
            ]
        )
    found = {name: number(dynamodb, table, name) for name in ("changed", "deleted", "new", "changed-elsewhere")}
    assert found == {"changed": 1, "deleted": 1, "new": 0, "changed-elsewhere": 0}


def test_a_transaction_on_one_item_twice_changes_nothing(dynamodb: DynamoDBClient, table: str):
    with pytest.raises(ClientError):
        dynamodb.transact_write_items(
            TransactItems=[
                {"Put": put_if(table, "a", 0)},
                {"Put": put_if(table, "b", 0)},
                {"Put": put_if(table, "a", 0)},
            ]
        )
    assert (number(dynamodb, table, "a"), number(dynamodb, table, "b")) == (0, 0)


@pytest.fixture
def fifo(sqs: SQSClient, unique: str) -> str:
    attributes: dict[QueueAttributeNameType, str] = {"FifoQueue": "true", "VisibilityTimeout": "1"}
    return str(sqs.create_queue(QueueName=f"{unique}.fifo", Attributes=attributes)["QueueUrl"])


def send(sqs: SQSClient, queue: str, group: str, text: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody=text, MessageGroupId=group, MessageDeduplicationId=text)


def receive(sqs: SQSClient, queue: str, limit: int = 10, wait_s: int = 0, **more: Any) -> list[MessageTypeDef]:
    answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=limit, WaitTimeSeconds=wait_s, **more)
    return list(answer.get("Messages", []))


def test_a_group_is_in_order_again_after_its_time_is_over(sqs: SQSClient, fifo: str):
    for text in ("A1", "A2", "A3"):
        send(sqs, fifo, "A", text)
    assert [message["Body"] for message in receive(sqs, fifo, limit=2)] == ["A1", "A2"]
    assert receive(sqs, fifo) == []  # the group is in work
    again = receive(sqs, fifo, wait_s=10)  # returns as soon as the two are visible again
    assert [message["Body"] for message in again] == ["A1", "A2", "A3"]


def test_two_receivers_never_hold_one_group(aws_endpoint: str, sqs: SQSClient, fifo: str):
    groups = 20
    for group in range(groups):
        for text in ("first", "second"):
            send(sqs, fifo, str(group), f"{group}-{text}")
    held: list[str] = []

    def work(_client: int) -> None:
        own = aws_client("sqs", aws_endpoint)
        while found := receive(own, fifo, limit=1, VisibilityTimeout=600):
            held.extend(message["Body"] for message in found)

    at_once(work)
    assert sorted(held) == sorted(f"{group}-first" for group in range(groups))


def test_nothing_sent_is_lost_while_others_delete(aws_endpoint: str, sqs: SQSClient, unique: str):
    queue = sqs.create_queue(QueueName=unique)["QueueUrl"]
    received: list[str] = []
    wanted = {f"{client}-{number}" for client in range(0, CLIENTS, 2) for number in range(ROUNDS)}
    done = threading.Event()

    def work(client: int) -> None:
        own = aws_client("sqs", aws_endpoint)
        if client % 2 == 0:
            for number in range(ROUNDS):
                own.send_message(QueueUrl=queue, MessageBody=f"{client}-{number}")
            return
        while not done.is_set():
            for message in receive(own, queue, limit=5, wait_s=1):
                received.append(message["Body"])
                own.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            if len(received) >= len(wanted):
                done.set()

    at_once(work)
    assert sorted(received) == sorted(wanted)


def test_deleting_again_is_fine_and_a_made_up_handle_is_not(sqs: SQSClient, fifo: str):
    send(sqs, fifo, "A", "A1")
    handle = receive(sqs, fifo)[0]["ReceiptHandle"]
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=handle)
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=handle)
    with pytest.raises(ClientError, match="ReceiptHandle"):
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle="made-up")


def test_giving_a_message_back_makes_it_the_first_again(sqs: SQSClient, fifo: str):
    send(sqs, fifo, "A", "A1")
    send(sqs, fifo, "A", "A2")
    handle = receive(sqs, fifo, limit=1, VisibilityTimeout=600)[0]["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=handle, VisibilityTimeout=0)
    assert [message["Body"] for message in receive(sqs, fifo, wait_s=5)] == ["A1", "A2"]


def test_a_send_wakes_who_waits_at_an_empty_queue(sqs: SQSClient, unique: str):
    queue = sqs.create_queue(QueueName=unique)["QueueUrl"]
    receive(sqs, queue)  # a connection is open, so that the wait begins at once
    with ThreadPoolExecutor(1) as threads:
        started_s = time.monotonic()
        waiting = threads.submit(receive, sqs, queue, wait_s=LONGEST_POLL_S)
        time.sleep(1)
        sqs.send_message(QueueUrl=queue, MessageBody="a")
        assert [message["Body"] for message in waiting.result()] == ["a"]
        assert time.monotonic() - started_s < LONGEST_POLL_S / 2


def test_long_poll_searches_again_only_for_a_visible_message():
    assert printed_lines(LONG_POLLS) == ["2", "after 2 s 2"]


def test_receiving_does_not_count_the_queue():
    assert printed_lines(MESSAGES) == ["[]", "['kept']", "[] 1"]


def test_a_delete_lets_the_group_go_on_at_once(sqs: SQSClient, fifo: str):
    for text in ("A1", "A2"):
        send(sqs, fifo, "A", text)
    handle = receive(sqs, fifo, limit=1, VisibilityTimeout=600)[0]["ReceiptHandle"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(receive, sqs, fifo, wait_s=LONGEST_POLL_S)
        time.sleep(0.5)
        assert not waiting.done()
        started_s = time.monotonic()
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=handle)
        assert [message["Body"] for message in waiting.result()] == ["A2"]
        assert time.monotonic() - started_s < LONGEST_POLL_S / 2


def test_attributes_are_answered_as_they_are_kept():
    """Texts and numbers are not converted; all others are, and come back as they were written."""
    assert printed_lines(ATTRIBUTES) == ["True", "['bytes', 'list', 'map', 'none', 'set', 'yes']"]


def test_an_entity_tag_costs_no_look_at_the_content():
    assert printed_lines(ENTITY_TAGS) == ["True True 34 0"]


def test_a_listing_of_versions_copies_no_body():
    assert printed_lines(LISTED_VERSIONS) == ["[('name', True, 7)] 0", "b'content'"]


def test_a_service_is_looked_for_once():
    assert printed_lines(LOOK_UPS) == ["sqs", "dynamodb", "sqs", "dynamodb", "looked through moto for 2 hosts"]


def test_a_body_is_read_at_once_and_missed_when_it_breaks_off():
    assert printed_lines(BODIES) == ["True 1 b''", "disconnected"]
