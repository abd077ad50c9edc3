"""pynamodb makes no client, adds nothing to a request, and describes the table as the port needs it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import botocore.session
import pynamodb.connection.base
import pytest
from request_counter import RequestCounter

from headrace.adapters.dynamodb import client as client_module
from headrace.adapters.dynamodb.client import dynamodb_client
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import BILLING_MODE, RecordItem, create_table, table_schema
from headrace.ports.metadata_store import Check, Create, Delete, Key, Record, Replace

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = ("GetItem", "PutItem", "DeleteItem", "BatchGetItem", "Query", "TransactWriteItems")


@pytest.fixture
def no_pynamodb_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise AssertionError("pynamodb makes a session of its own")

    monkeypatch.setattr(pynamodb.connection.base, "get_session", refuse)


def use_every_operation(store: DynamoMetadataStore, partition: str) -> None:
    a, b = Key(partition, "a"), Key(partition, "b")
    store.write(Create(a, {}))
    store.write(Create(b, {}), Check(a, 0))
    assert store.get(a) == Record(a, 0, {})
    assert store.get_many([a, b]) == [Record(a, 0, {}), Record(b, 0, {})]
    assert len(store.query(partition, first="a", last="b", limit=5).records) == 2
    store.write(Replace(a, {}, 0))
    store.write(Delete(a, 1))


@pytest.mark.usefixtures("no_pynamodb_session")
def test_all_requests_use_the_given_client(table_name: str, dynamodb: DynamoDBClient, partition: str):
    counter = RequestCounter(dynamodb)
    with counter.counting() as calls:
        use_every_operation(DynamoMetadataStore(table_name, dynamodb), partition)
    assert calls == dict.fromkeys(OPERATIONS, 1) | {"PutItem": 2}


@pytest.mark.usefixtures("no_pynamodb_session")
def test_a_client_without_credentials_is_not_replaced(monkeypatch: pytest.MonkeyPatch):
    """pynamodb's own connection makes another client then, with settings of its own."""
    session = botocore.session.Session()
    monkeypatch.setattr(session, "get_credentials", lambda *_: None)
    client = dynamodb_client(session)
    store = DynamoMetadataStore("any", client)
    assert store._table.connection.client is client


def test_client_settings_are_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    config: Any = DynamoMetadataStore("any")._table.connection.client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (1.0, 5.0)
    assert (config.region_name, config.tcp_keepalive) == ("eu-central-1", True)
    assert config.max_pool_connections == client_module.CONNECTIONS_MAX_DEFAULT
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}


def test_requests_hold_only_what_the_store_needs(table_name: str, partition: str):
    """pynamodb by itself asks for the consumed capacity, which DynamoDB would send with each answer."""
    asked: list[dict[str, Any]] = []
    client = dynamodb_client()
    client.meta.events.register("provide-client-params.dynamodb", lambda params, **_: asked.append(params))
    use_every_operation(DynamoMetadataStore(table_name, client), partition)
    assert len(asked) == len(OPERATIONS) + 1
    assert not any(name.startswith(("ReturnConsumed", "ReturnItemCollection")) for each in asked for name in each)


def test_stores_of_one_process_keep_their_tables(table_name: str, dynamodb: DynamoDBClient, partition: str):
    other_name = f"{table_name}-other"
    create_table(other_name, dynamodb)
    first, second = DynamoMetadataStore(table_name, dynamodb), DynamoMetadataStore(other_name, dynamodb)
    key = Key(partition, "a")
    first.write(Create(key, {"in": "one"}))
    second.write(Create(key, {"in": "other"}), Check(Key(partition, "b"), None))
    assert [store.get(key) for store in (first, second)] == [
        Record(key, 0, {"in": "one"}),
        Record(key, 0, {"in": "other"}),
    ]


def test_many_threads_share_one_store(table_name: str, dynamodb: DynamoDBClient, partition: str):
    store = DynamoMetadataStore(table_name, dynamodb)

    def own_records(number: int) -> list[Record | None]:
        keys = [Key(f"{partition}/{number}", f"{sort}") for sort in range(3)]
        store.write(*[Create(key, {"of": number}) for key in keys])
        store.write(Replace(keys[0], {"of": number}, 0))
        return [store.get(keys[0]), *store.query(keys[0].partition, first="1", limit=9).records]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(own_records, range(24)))
    for number, records in enumerate(found):
        expected = [Record(Key(f"{partition}/{number}", f"{n}"), int(n == 0), {"of": number}) for n in range(3)]
        assert records == expected


def test_the_table_is_created_as_the_model_says(table_name: str, dynamodb: DynamoDBClient):
    table = dynamodb.describe_table(TableName=table_name)["Table"]
    assert {name: table[name] for name in table_schema()} == table_schema()
    assert table_schema()["KeySchema"] == [
        {"AttributeName": "partition", "KeyType": "HASH"},
        {"AttributeName": "sort", "KeyType": "RANGE"},
    ]
    assert table["BillingModeSummary"]["BillingMode"] == BILLING_MODE == "PAY_PER_REQUEST"
    assert set(RecordItem.get_attributes()) == {"partition", "sort", "version", "body", "write_id"}


def test_the_adapter_loads_no_boto3():
    """Imports are paid for in each cold start."""
    program = (
        "import sys, headrace.adapters.dynamodb.metadata_store\n"
        "print(sorted({'boto3', 'moto', 'requests', 's3transfer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
