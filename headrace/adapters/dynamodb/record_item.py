"""The schema of the metadata table as a pynamodb model, and records as its items with the conditions of writes.

The infrastructure code must not import adapters, so the CDK declares the table itself. A test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.attributes import Attribute, UnicodeAttribute
from pynamodb.connection.base import MetaTable
from pynamodb.constants import (
    ATTR_DEFINITIONS,
    ATTR_NAME,
    ATTR_TYPE,
    KEY_SCHEMA,
    KEY_TYPE,
    NUMBER,
    PAY_PER_REQUEST_BILLING_MODE,
    STRING,
    TABLE_NAME,
)
from pynamodb.expressions.condition import Condition
from pynamodb.models import Model
from pynamodb.types import HASH, RANGE

from headrace.adapters.dynamodb.client import ClientTableConnection
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

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


BILLING_MODE = PAY_PER_REQUEST_BILLING_MODE

_Item = TypeVar("_Item", bound="RecordItem")


class IntegerAttribute(Attribute[int]):
    """An integer attribute. pynamodb's own number attribute also accepts floats."""

    attr_type = NUMBER

    def serialize(self, value: int) -> str:
        return str(value)

    def deserialize(self, value: str) -> int:
        return int(value)


class RecordItem(Model):
    """One record of the metadata store. `connected_model` binds it to a table.

    `version` is not pynamodb's `VersionAttribute`, because that starts at 1 and records start at 0. `body` is compact
    JSON; queries do not filter by its fields. `write_id` identifies the write that put the item, so that a writer
    recognises its own write after an answer was lost.
    """

    partition = UnicodeAttribute(hash_key=True)
    sort = UnicodeAttribute(range_key=True)
    version = IntegerAttribute()
    body = UnicodeAttribute()
    write_id = UnicodeAttribute(null=True)

    @classmethod
    def from_raw_data(cls: type[_Item], data: dict[str, Any]) -> _Item:
        """The item in an answer.

        Raises:
            CorruptError: an attribute has another type; another program may have written the item.
        """
        item = cls()
        try:
            # Without pynamodb's defaults and discriminators, which would double the time to read a page of items.
            item.attribute_values = {
                name: attribute.deserialize(attribute.get_value(data[name]))
                for name, attribute in cls.get_attributes().items()
                if name in data
            }
        except (TypeError, ValueError) as error:
            raise CorruptError(f"a metadata item has an attribute of another type: {error}") from error
        return item

    def serialize(self, null_check: bool = True) -> dict[str, dict[str, Any]]:
        """The attributes that are set, in the format of a request. `items.item` sets all of them for a put."""
        return {
            name: {attribute.attr_type: attribute.serialize(self.attribute_values[name])}
            for name, attribute in self.get_attributes().items()
            if name in self.attribute_values
        }


def table_schema() -> dict[str, list[dict[str, str]]]:
    """The keys and their types, as CreateTable expects them."""
    keys = [each for each in RecordItem.get_attributes().values() if each.is_hash_key or each.is_range_key]
    return {
        KEY_SCHEMA: [{ATTR_NAME: key.attr_name, KEY_TYPE: HASH if key.is_hash_key else RANGE} for key in keys],
        ATTR_DEFINITIONS: [{ATTR_NAME: key.attr_name, ATTR_TYPE: key.attr_type} for key in keys],
    }


def connect(table_name: str, client: DynamoDBClient) -> ClientTableConnection:
    """A connection to that table; requests go through `client` with its settings."""
    return ClientTableConnection(MetaTable({TABLE_NAME: table_name, **table_schema()}), client)


def connected_model(connection: ClientTableConnection) -> type[RecordItem]:
    """`RecordItem` on the table of that connection.

    Each call creates a class, because pynamodb binds a table to a class and one process may use several tables.
    """
    given = connection

    class ConnectedRecordItem(RecordItem):
        class Meta:
            table_name = given.table_name
            billing_mode = BILLING_MODE

        _connection = given

    return ConnectedRecordItem


def create_table(table_name: str, client: DynamoDBClient) -> None:
    """Create the table if it is missing, for tests and the local stack. In AWS the CDK creates it."""
    connected_model(connect(table_name, client)).create_table()


# Translates records to items and back, and builds the conditions of writes. It sends no requests.
#
# Keys and sizes are checked here with `ports.record_limits`, before a request is sent.

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
