"""Translates records to items and back, and builds the conditions of writes. It sends no requests.

Keys and sizes are checked here with `ports.record_limits`, before a request is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pynamodb.constants import STRING
from pynamodb.expressions.condition import Condition

from headrace.adapters.dynamodb.record_item import RecordItem
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    Check,
    Create,
    Key,
    Record,
    Replace,
    Write,
    check_key,
    checked_texts,
)

_PARTITION = RecordItem.partition.attr_name
_SORT = RecordItem.sort.attr_name
_VERSION = RecordItem.version.attr_name
_BODY = RecordItem.body.attr_name
_IF_ABSENT = RecordItem.partition.does_not_exist()
_IF_PRESENT = RecordItem.partition.exists()


def key_attributes(key: Key) -> dict[str, Any]:
    """The primary key of a record's item; raises as `check_key`."""
    check_key(key)
    return {_PARTITION: {STRING: key.partition}, _SORT: {STRING: key.sort}}


def record(item: RecordItem) -> Record:
    """The record in an item.

    Raises:
        CorruptError: the item is not a record; another program may have written it.
    """
    values = item.attribute_values  # an attribute that is missing reads as None through the model
    try:
        key = Key(values[_PARTITION], values[_SORT])
    except KeyError as error:
        raise CorruptError(f"a metadata item has no key: {sorted(values)}") from error
    try:
        version, body = values[_VERSION], json.loads(values[_BODY])
    except (KeyError, ValueError) as error:
        raise CorruptError(f"the metadata item at {key} is not a record: {error!r}") from error
    if not isinstance(body, dict) or version < 0:
        raise CorruptError(f"the metadata item at {key} is not a record: version {version}, {type(body).__name__} body")
    return Record(key, version, body)


def transaction_items(model: type[RecordItem], writes: Sequence[Write], write_id: str) -> list[RecordItem]:
    """The item that each write puts, deletes or checks; the latter two need only their keys.

    Raises:
        ItemRefusedError: a record is too large, or its key is invalid; or the bodies together are too large.
    """
    texts = checked_texts(writes)
    return [_item(model, write, write_id, text) for write, text in zip(writes, texts, strict=True)]


def _item(model: type[RecordItem], write: Write, write_id: str, text: str | None) -> RecordItem:
    if not isinstance(write, Create | Replace):
        return model(write.key.partition, write.key.sort)
    version = write.version if isinstance(write, Create) else write.version + 1
    return model(write.key.partition, write.key.sort, version=version, body=text, write_id=write_id)


def condition(write: Write) -> Condition | None:
    """The condition of `write` on the stored item; None if it has none."""
    if isinstance(write, Create):
        return _IF_ABSENT
    if write.version is None:
        return _IF_ABSENT if isinstance(write, Check) else None
    if isinstance(write, Check) and write.version == ANY_VERSION:
        return _IF_PRESENT
    return RecordItem.version == write.version


def sort_condition(first: str, last: str | None) -> Condition | None:
    """The condition first <= sort <= last; None for `last` means no upper bound."""
    if last is None:
        return RecordItem.sort >= first if first else None
    return RecordItem.sort.between(first, last) if first else RecordItem.sort <= last
