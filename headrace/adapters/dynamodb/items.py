"""Records and writes as DynamoDB items and request parts: pure translation, no requests.

An item has the attributes `partition` (S, hash key), `sort` (S, range key), `version` (N), `body` (S: compact JSON) and
`write_id` (S), which names the write that put it there and is how a writer recognises its own write after an answer was
lost. Nothing is ever filtered or indexed by what stands in a body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    BODY_BYTES_MAX,
    Check,
    Create,
    Delete,
    Key,
    Record,
    Replace,
    Write,
)

TRANSACTION_BYTES_MAX = 3_800_000
"""DynamoDB's limit of 4 MB for all items of a transaction, less room for a hundred keys."""

PARTITION_BYTES_MAX = 2048
SORT_BYTES_MAX = 1024

PARTITION = "partition"
SORT = "sort"
_VERSION = "version"
_BODY = "body"
WRITE_ID = "write_id"

_IF_ABSENT = {"ConditionExpression": "attribute_not_exists(#p)", "ExpressionAttributeNames": {"#p": PARTITION}}
_IF_PRESENT = {"ConditionExpression": "attribute_exists(#p)", "ExpressionAttributeNames": {"#p": PARTITION}}


def key_attributes(key: Key) -> dict[str, Any]:
    """The primary key of a record's item.

    Raises:
        InvalidRequestError: DynamoDB takes no such key (empty, too long, or not encodable).
    """
    _check_key_part("partition", key.partition, PARTITION_BYTES_MAX)
    _check_key_part("sort", key.sort, SORT_BYTES_MAX)
    return {PARTITION: {"S": key.partition}, SORT: {"S": key.sort}}


def _check_key_part(kind: str, text: str, bytes_max: int) -> None:
    try:
        length_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"the {kind} key {text[:100]!r} is not valid Unicode text") from None
    if not 1 <= length_bytes <= bytes_max:
        raise InvalidRequestError(
            f"a {kind} key takes 1 to {bytes_max} bytes, {text[:100]!r} has {length_bytes}",
            details={"length_bytes": length_bytes, "length_bytes_max": bytes_max},
        )


def record(item: Mapping[str, Any]) -> Record:
    """The record that an item holds.

    Raises:
        CorruptError: somebody else wrote into the table.
    """
    try:
        key = Key(item[PARTITION]["S"], item[SORT]["S"])
    except (KeyError, TypeError) as error:
        raise CorruptError(f"a metadata item has no key: {sorted(item)}") from error
    try:
        version, body = int(item[_VERSION]["N"]), json.loads(item[_BODY]["S"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"the metadata item at {key} is not a record: {error!r}") from error
    if not isinstance(body, dict) or version < 0:
        raise CorruptError(f"the metadata item at {key} is not a record: version {version}, {type(body).__name__} body")
    return Record(key, version, body)


def is_written_by(item: Mapping[str, Any] | None, write_id: str) -> bool:
    """Whether the item was put by the write of that id."""
    return item is not None and item.get(WRITE_ID) == {"S": write_id}


def write_request(table_name: str, write: Write, write_id: str) -> dict[str, Any]:
    """Parameters of the PutItem, DeleteItem or ConditionCheck that carries out `write` under its condition.

    Raises:
        InvalidRequestError: the record is too large, or its key is none.
    """
    request: dict[str, Any] = {"TableName": table_name, **_condition(write)}
    if "ConditionExpression" in request:
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if isinstance(write, Create | Replace):
        request["Item"] = _item(write, write_id)
    else:
        request["Key"] = key_attributes(write.key)
    return request


def transaction_entries(table_name: str, writes: Sequence[Write], write_id: str) -> list[dict[str, Any]]:
    """`writes` as the entries of one TransactWriteItems.

    Raises:
        InvalidRequestError: as `write_request`, or the bodies together are too large.
    """
    entries = [_transaction_entry(table_name, write, write_id) for write in writes]
    length_bytes = sum(len(entry["Put"]["Item"][_BODY]["S"]) for entry in entries if "Put" in entry)
    if length_bytes > TRANSACTION_BYTES_MAX:
        raise InvalidRequestError(
            f"the bodies of one transaction take at most {TRANSACTION_BYTES_MAX} bytes, not {length_bytes}",
            details={"length_bytes": length_bytes, "length_bytes_max": TRANSACTION_BYTES_MAX},
        )
    return entries


def _transaction_entry(table_name: str, write: Write, write_id: str) -> dict[str, Any]:
    kind = {Create: "Put", Replace: "Put", Delete: "Delete", Check: "ConditionCheck"}[type(write)]
    return {kind: write_request(table_name, write, write_id)}


def _condition(write: Write) -> dict[str, Any]:
    if isinstance(write, Create):
        return _IF_ABSENT
    if write.version is None:
        return _IF_ABSENT if isinstance(write, Check) else {}
    if isinstance(write, Check) and write.version == ANY_VERSION:
        return _IF_PRESENT
    return {
        "ConditionExpression": "#v = :v",
        "ExpressionAttributeNames": {"#v": _VERSION},
        "ExpressionAttributeValues": {":v": {"N": str(write.version)}},
    }


def _item(write: Create | Replace, write_id: str) -> dict[str, Any]:
    version = 0 if isinstance(write, Create) else write.version + 1
    return {
        **key_attributes(write.key),
        _VERSION: {"N": str(version)},
        _BODY: {"S": _text(write)},
        WRITE_ID: {"S": write_id},
    }


def body_bytes(item: Mapping[str, Any]) -> int:
    """The length of the body of an item that `record` has read."""
    return len(item[_BODY]["S"])


def _text(write: Create | Replace) -> str:
    """The body as JSON in ASCII, whose length in characters is its length in bytes."""
    text = json.dumps(dict(write.body), separators=(",", ":"), allow_nan=False)
    if len(text) > BODY_BYTES_MAX:
        raise InvalidRequestError(
            f"the record at {write.key} is larger than {BODY_BYTES_MAX} bytes",
            details={"length_bytes": len(text), "length_bytes_max": BODY_BYTES_MAX},
        )
    return text
