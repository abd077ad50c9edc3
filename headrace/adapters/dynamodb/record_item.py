"""The metadata table as a pynamodb model: the one place in Python that knows its schema.

The infrastructure must not import adapters. A test compares the table that the CDK declares with this model.
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

from headrace.adapters.dynamodb.connection import ClientTableConnection
from headrace.model.errors import CorruptError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BILLING_MODE = PAY_PER_REQUEST_BILLING_MODE

_Item = TypeVar("_Item", bound="RecordItem")


class IntegerAttribute(Attribute[int]):
    """A number without a fraction: pynamodb's own number attribute also reads floats."""

    attr_type = NUMBER

    def serialize(self, value: int) -> str:
        return str(value)

    def deserialize(self, value: str) -> int:
        return int(value)


class RecordItem(Model):
    """One record of the metadata store. `connected_model` binds it to a table.

    `version` is not pynamodb's `VersionAttribute`, which starts at 1: records start at 0. `body` is compact JSON, and
    nothing is filtered or indexed by its contents. `write_id` names the write that put the item there, which is how a
    writer recognises its own write after an answer was lost.
    """

    partition = UnicodeAttribute(hash_key=True)
    sort = UnicodeAttribute(range_key=True)
    version = IntegerAttribute()
    body = UnicodeAttribute()
    write_id = UnicodeAttribute(null=True)

    @classmethod
    def from_raw_data(cls: type[_Item], data: dict[str, Any]) -> _Item:
        """The item of an answer.

        Raises:
            CorruptError: another program wrote the item, with attributes of other types.
        """
        item = cls()
        try:
            # Without pynamodb's defaults and discriminators, which would double the time that a page of items takes.
            item.attribute_values = {
                name: attribute.deserialize(attribute.get_value(data[name]))
                for name, attribute in cls.get_attributes().items()
                if name in data
            }
        except (TypeError, ValueError) as error:
            raise CorruptError(f"a metadata item has an attribute of another type: {error}") from error
        return item

    def serialize(self, null_check: bool = True) -> dict[str, dict[str, Any]]:
        """The attributes that are set, as a request holds them; `items.item` sets all of a record that is put."""
        return {
            name: {attribute.attr_type: attribute.serialize(self.attribute_values[name])}
            for name, attribute in self.get_attributes().items()
            if name in self.attribute_values
        }


def table_schema() -> dict[str, list[dict[str, str]]]:
    """Keys and their types, in the words of CreateTable."""
    keys = [each for each in RecordItem.get_attributes().values() if each.is_hash_key or each.is_range_key]
    return {
        KEY_SCHEMA: [{ATTR_NAME: key.attr_name, KEY_TYPE: HASH if key.is_hash_key else RANGE} for key in keys],
        ATTR_DEFINITIONS: [{ATTR_NAME: key.attr_name, ATTR_TYPE: key.attr_type} for key in keys],
    }


def connect(table_name: str, client: DynamoDBClient) -> ClientTableConnection:
    """A connection to that table; requests go through `client`, with the settings that its maker chose."""
    return ClientTableConnection(MetaTable({TABLE_NAME: table_name, **table_schema()}), client)


def connected_model(connection: ClientTableConnection) -> type[RecordItem]:
    """`RecordItem` on the table of that connection.

    A class for each call: pynamodb binds a table to a class, and one process may hold several stores.
    """
    given = connection

    class ConnectedRecordItem(RecordItem):
        class Meta:
            table_name = given.table_name
            billing_mode = BILLING_MODE

        _connection = given

    return ConnectedRecordItem


def create_table(table_name: str, client: DynamoDBClient) -> None:
    """Create the table if it is missing. For tests and the local stack: in AWS the CDK creates it."""
    connected_model(connect(table_name, client)).create_table()
