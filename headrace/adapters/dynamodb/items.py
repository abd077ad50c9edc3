"""Translates records to items and back, and builds the conditions of writes. It sends no requests.

Keys and sizes are checked here, before a request is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pynamodb.constants import STRING
from pynamodb.expressions.condition import Condition

from headrace.adapters.dynamodb.record_item import RecordItem
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    BODY_BYTES_MAX,
    Check,
    Create,
    Key,
    Record,
    Replace,
    Write,
)

TRANSACTION_BYTES_MAX = 3_800_000
"""DynamoDB's limit of 4 MB for all items of a transaction, less room for a hundred keys."""

PARTITION_BYTES_MAX = 2048
SORT_BYTES_MAX = 1024

_PARTITION = RecordItem.partition.attr_name
_SORT = RecordItem.sort.attr_name
_VERSION = RecordItem.version.attr_name
_BODY = RecordItem.body.attr_name
_IF_ABSENT = RecordItem.partition.does_not_exist()
_IF_PRESENT = RecordItem.partition.exists()


def check_key(key: Key) -> None:
    """Reject a key that DynamoDB does not accept.

    Raises:
        InvalidRequestError: a part is empty, too long, or not valid Unicode text.
    """
    _check_key_part("partition", key.partition, PARTITION_BYTES_MAX)
    _check_key_part("sort", key.sort, SORT_BYTES_MAX)


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


def item(model: type[RecordItem], write: Write, write_id: str) -> RecordItem:
    """The item that `write` puts, deletes or checks; the latter two need only its key.

    Raises:
        InvalidRequestError: the record is too large, or its key is invalid.
    """
    check_key(write.key)
    if not isinstance(write, Create | Replace):
        return model(write.key.partition, write.key.sort)
    version = write.version if isinstance(write, Create) else write.version + 1
    return model(write.key.partition, write.key.sort, version=version, body=_text(write), write_id=write_id)


def condition(write: Write) -> Condition | None:
    """The condition of `write` on the stored item; None if it has none."""
    if isinstance(write, Create):
        return _IF_ABSENT
    if write.version is None:
        return _IF_ABSENT if isinstance(write, Check) else None
    if isinstance(write, Check) and write.version == ANY_VERSION:
        return _IF_PRESENT
    return RecordItem.version == write.version


def transaction_items(model: type[RecordItem], writes: Sequence[Write], write_id: str) -> list[RecordItem]:
    """The `item` of each write of a transaction.

    Raises:
        InvalidRequestError: as `item`, or the bodies together are too large.
    """
    found = [item(model, write, write_id) for write in writes]
    length_bytes = sum(len(each.body) for each in found if each.body is not None)
    if length_bytes > TRANSACTION_BYTES_MAX:
        raise InvalidRequestError(
            f"the bodies of one transaction take at most {TRANSACTION_BYTES_MAX} bytes, not {length_bytes}",
            details={"length_bytes": length_bytes, "length_bytes_max": TRANSACTION_BYTES_MAX},
        )
    return found


def sort_condition(first: str, last: str | None) -> Condition | None:
    """The condition first <= sort <= last; None for `last` means no upper bound."""
    if last is None:
        return RecordItem.sort >= first if first else None
    return RecordItem.sort.between(first, last) if first else RecordItem.sort <= last


def _text(write: Create | Replace) -> str:
    """The body as JSON in ASCII, so that its length in characters is its length in bytes."""
    text = json.dumps(dict(write.body), separators=(",", ":"), allow_nan=False)
    if len(text) > BODY_BYTES_MAX:
        raise InvalidRequestError(
            f"the record at {write.key} is larger than {BODY_BYTES_MAX} bytes",
            details={"length_bytes": len(text), "length_bytes_max": BODY_BYTES_MAX},
        )
    return text
