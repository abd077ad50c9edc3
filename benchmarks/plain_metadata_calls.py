"""The calls of the metadata store as botocore's client alone takes them: what the adapter on pynamodb is held against.

It does what decision 0003 described: requests written by hand, one dict for each. Happy paths only.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.adapters.dynamodb.client import Retries
from headrace.adapters.dynamodb.record_item import key_attributes
from headrace.ports.metadata_store import Check, Create, Delete, Key, Page, Record, Replace, Write


class PlainMetadataCalls:
    """The part of `MetadataStore` that is measured."""

    def __init__(self, table_name: str, client: Any) -> None:
        self._table_name = table_name
        self._client = client
        self._retries = Retries()

    def get(self, key: Key) -> Record | None:
        request = {"TableName": self._table_name, "Key": key_attributes(key), "ConsistentRead": True}
        answer = self._send(f"reading {key}", self._client.get_item, request)
        return _record(answer["Item"]) if "Item" in answer else None

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        wanted = {"Keys": [key_attributes(key) for key in keys], "ConsistentRead": True}
        request = {"RequestItems": {self._table_name: wanted}}
        answer = self._send(f"reading {len(keys)} records", self._client.batch_get_item, request)
        found = {record.key: record for record in map(_record, answer["Responses"][self._table_name])}
        return [found.get(key) for key in keys]

    def query(self, partition: str, *, first: str, last: str, limit: int) -> Page:
        request = {
            "TableName": self._table_name,
            "KeyConditionExpression": "#p = :p AND #s BETWEEN :first AND :last",
            "ExpressionAttributeNames": {"#p": "partition", "#s": "sort"},
            "ExpressionAttributeValues": {":p": {"S": partition}, ":first": {"S": first}, ":last": {"S": last}},
            "ConsistentRead": True,
            "ScanIndexForward": True,
            "Limit": limit,
        }
        answer = self._send(f"querying {partition}", self._client.query, request)
        return Page([_record(item) for item in answer["Items"]], None)

    def write(self, *writes: Write) -> None:
        write_id = secrets.token_urlsafe(12)
        if len(writes) > 1:
            entries = [{_KINDS[type(write)]: self._request(write, write_id)} for write in writes]
            request = {"TransactItems": entries, "ClientRequestToken": write_id}
            self._send(f"writing {len(writes)} records", self._client.transact_write_items, request)
        else:
            send = self._client.delete_item if isinstance(writes[0], Delete) else self._client.put_item
            self._send(f"writing {writes[0].key}", send, self._request(writes[0], write_id))

    def _request(self, write: Write, write_id: str) -> dict[str, Any]:
        request = {"TableName": self._table_name, **_condition(write)}
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if isinstance(write, Delete | Check):
            return request | {"Key": key_attributes(write.key)}
        values = {
            "version": {"N": str(0 if isinstance(write, Create) else write.version + 1)},
            "body": {"S": json.dumps(dict(write.body), separators=(",", ":"), allow_nan=False)},
            "write_id": {"S": write_id},
        }
        return request | {"Item": key_attributes(write.key) | values}

    def _send(self, what: str, operation: Any, request: dict[str, Any]) -> Any:
        return self._retries.run(what, partial(operation, **request))


_KINDS: dict[type[Write], str] = {Create: "Put", Replace: "Put", Delete: "Delete", Check: "ConditionCheck"}


def _condition(write: Write) -> dict[str, Any]:
    if isinstance(write, Create):
        return {"ConditionExpression": "attribute_not_exists(#p)", "ExpressionAttributeNames": {"#p": "partition"}}
    return {
        "ConditionExpression": "#v = :v",
        "ExpressionAttributeNames": {"#v": "version"},
        "ExpressionAttributeValues": {":v": {"N": str(write.version)}},
    }


def _record(item: dict[str, Any]) -> Record:
    key = Key(item["partition"]["S"], item["sort"]["S"])
    return Record(key, int(item["version"]["N"]), json.loads(item["body"]["S"]))
