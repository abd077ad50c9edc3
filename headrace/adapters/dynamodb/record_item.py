"""The schema of the metadata table as a pynamodb model.

The infrastructure code must not import adapters, so the CDK declares the table itself. A test compares the two.
"""

from __future__ import annotations

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
    TABLE_NAME,
)
from pynamodb.models import Model
from pynamodb.types import HASH, RANGE

from headrace.adapters.dynamodb.client import ClientTableConnection
from headrace.model.errors import CorruptError

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
