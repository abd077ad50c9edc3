"""The items of a table as a restore reads and writes them, on the emulator."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.dynamodb.table_items import ITEMS_PER_PAGE, TableItems, is_same, key_of, record_of
from headrace.model.errors import ConflictError, NotFoundError
from headrace.ports.metadata_store import Create, Key, Replace

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KEY = Key("a", "b")


@pytest.fixture
def items(dynamodb: DynamoDBClient) -> TableItems:
    """An empty table."""
    name = f"items-{uuid.uuid4().hex}"
    create_table(name, dynamodb)
    return TableItems(name, dynamodb)


@pytest.fixture
def store(items: TableItems, dynamodb: DynamoDBClient) -> DynamoMetadataStore:
    """A metadata store on the same table."""
    return DynamoMetadataStore(items.table, dynamodb)


def item(version: int, **more: Any) -> dict[str, Any]:
    return {"partition": {"S": "a"}, "sort": {"S": "b"}, "version": {"N": str(version)}, "body": {"S": "{}"}, **more}


def test_pages_have_all_items_and_fit_a_batch_read(items: TableItems, store: DynamoMetadataStore):
    keys = [Key("a", f"{number:03d}") for number in range(ITEMS_PER_PAGE + 20)]
    for key in keys:
        store.write(Create(key, {"key": key.sort}))
    pages = [[key_of(each) for each in page] for page in items.pages()]
    assert [key for page in pages for key in page] == keys
    assert max(map(len, pages)) == ITEMS_PER_PAGE
    assert list(items.records(keys[:3])) == keys[:3]


def test_table_of_more_than_an_answer_is_read_to_its_end(items: TableItems):
    large = {"S": "x" * 300_000}
    for number in range(8):  # an answer has 1 MB
        items.put(item(1) | {"sort": {"S": str(number)}, "body": large}, None)
    sorts = [key_of(each).sort for page in items.pages() for each in page]
    assert sorts == [str(number) for number in range(8)]


def test_items_that_an_answer_leaves_out_are_asked_for_again(items: TableItems, dynamodb: DynamoDBClient):
    class Slow:
        """Answers a batch read with one item, and leaves the others."""

        def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:
            keys = RequestItems[items.table]["Keys"]
            answer = dynamodb.batch_get_item(RequestItems={items.table: {"Keys": keys[:1], "ConsistentRead": True}})
            left = {items.table: {"Keys": keys[1:]}} if keys[1:] else {}
            return {"Responses": answer["Responses"], "UnprocessedKeys": left}

    keys = [Key("a", str(number)) for number in range(4)]
    for key in keys:
        items.put(item(1) | {"sort": {"S": key.sort}}, None)
    client: Any = Slow()
    assert list(TableItems(items.table, client).get_many(keys)) == keys


def test_item_is_written_with_its_version(items: TableItems, store: DynamoMetadataStore):
    items.put(item(7), None)
    record = store.get(KEY)
    assert record is not None
    assert record.version == 7
    items.put(item(3), items.get_many([KEY])[KEY])
    assert items.records([KEY])[KEY].version == 3


@pytest.mark.parametrize("former", [None, item(1), item(2, write_id={"S": "other"})])
def test_item_that_has_changed_is_not_written(
    items: TableItems, store: DynamoMetadataStore, former: dict[str, Any] | None
):
    store.write(Create(KEY, {}, 2))
    with pytest.raises(ConflictError):
        items.put(item(9), former)
    if former is not None:
        with pytest.raises(ConflictError):
            items.delete(former)
    assert items.records([KEY])[KEY].version == 2


def test_write_that_is_repeated_has_succeeded(items: TableItems):
    items.put(item(7), None)
    items.put(item(7), None)
    former = items.get_many([KEY])[KEY]
    items.delete(former)
    items.delete(former)
    assert items.get_many([KEY]) == {}


def test_same_record_may_have_another_write(items: TableItems, store: DynamoMetadataStore):
    store.write(Create(KEY, {}))
    before = items.get_many([KEY])[KEY]
    assert is_same(item(0), before)
    assert not is_same(item(1), before)
    assert not is_same(item(0), None)
    store.write(Replace(KEY, {"more": 1}, 0))
    assert record_of(items.get_many([KEY])[KEY]).body == {"more": 1}


def test_table_that_was_not_restored_has_no_origin(items: TableItems):
    origin = items.origin()
    assert origin.arn.endswith(items.table)
    assert (origin.restored_from, origin.restored_to_ms) == (None, None)


def test_missing_table_is_not_found(dynamodb: DynamoDBClient):
    with pytest.raises(NotFoundError, match="no-such-table"):
        TableItems("no-such-table", dynamodb).origin()
