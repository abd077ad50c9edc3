"""The window in which moto loses writes, held open on purpose: with the patches nothing slips through.

The emulator runs with a hook that stops one request in the middle and says so; the test then sends the request that
would be lost. With the patch that one waits for the first, so the hook gives up waiting for it after a moment.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.local.aws_emulator import READY_PREFIX
from headrace.local.resources import aws_client

ROOT = Path(__file__).resolve().parents[2]

HOLD = """
import threading
slipped_through = threading.Event()
def hold():
    print("held", flush=True)
    slipped_through.wait(1)
"""

IN_A_TRANSACTION = (
    HOLD
    + """
from moto.dynamodb.models import DynamoDBBackend
put_item = DynamoDBBackend.put_item
def hooked(backend, table, attributes, *more, **named):
    item = put_item(backend, table, attributes, *more, **named)
    if attributes["name"]["S"] == "of the transaction":
        hold()
    if attributes["name"]["S"] == "beside it":
        slipped_through.set()
    return item
DynamoDBBackend.put_item = hooked
"""
)

RUN = "\nimport sys\nfrom headrace.local.aws_emulator import main\nsys.exit(main([]))\n"


class Emulator:
    """An emulator with a hook."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.endpoint = self.line().removeprefix(READY_PREFIX)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def emulator(hook: str) -> Iterator[Emulator]:
    process = subprocess.Popen([sys.executable, "-c", hook + RUN], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield Emulator(process)
    finally:
        process.kill()
        process.communicate()


def test_a_failing_transaction_does_not_undo_a_write_beside_it():
    with emulator(IN_A_TRANSACTION) as held, ThreadPoolExecutor(1) as other_client:
        dynamodb = aws_client("dynamodb", held.endpoint)
        dynamodb.create_table(
            TableName="table",
            KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        put = {"TableName": "table", "Item": {"name": {"S": "of the transaction"}}}
        fails = {
            "TableName": "table",
            "Key": {"name": {"S": "not there"}},
            "ConditionExpression": "attribute_exists(#n)",
            "ExpressionAttributeNames": {"#n": "name"},
        }
        transaction = other_client.submit(
            aws_client("dynamodb", held.endpoint).transact_write_items,
            TransactItems=[{"Put": put}, {"ConditionCheck": fails}],
        )
        assert held.line() == "held"
        dynamodb.put_item(TableName="table", Item={"name": {"S": "beside it"}})
        with pytest.raises(dynamodb.exceptions.ClientError, match="TransactionCanceled"):
            transaction.result()
        items = dynamodb.scan(TableName="table")["Items"]
    assert items == [{"name": {"S": "beside it"}}]
