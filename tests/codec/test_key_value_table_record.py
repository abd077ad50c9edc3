"""Key-value tables as they are stored."""

from __future__ import annotations

import json

import pytest

from headrace.codec.records import (
    key_value_table_record,
)
from headrace.model.errors import CorruptError
from headrace.model.key_value_tables import TableConfiguration, new_table, table_created


def test_golden_values_of_a_table_and_its_tombstone():
    table = new_table("s", "k", TableConfiguration(3, 4, 2, 99), 6, 1_000)
    body = key_value_table_record.table_body(table)
    assert body == {
        "format": 1,
        "scope": "s",
        "name": "k",
        "state": "CREATING",
        "configuration": {
            "partitions": 3,
            "primary_key_length": 4,
            "secondary_key_length": 2,
            "rollover_size_bytes": 99,
        },
        "created": 1_000,
        "first_number": 6,
        "pending": ["create_key_value_table", "create_key_value_table-6"],
    }
    assert key_value_table_record.table_of_body(json.loads(json.dumps(body))) == table
    opened = table_created(table)
    assert key_value_table_record.table_of_body(key_value_table_record.table_body(opened)) == opened
    tombstone = key_value_table_record.table_tombstone_body(table.next_segment_number)
    assert tombstone == {"format": 1, "next_number": 9}
    assert key_value_table_record.table_of_body(tombstone) is None
    assert key_value_table_record.next_number_of_table_tombstone(tombstone) == 9
    for strange in ({**body, "state": "MELTING"}, {**body, "format": 2}, {**body, "configuration": {}}):
        with pytest.raises(CorruptError):
            key_value_table_record.table_of_body(strange)
    assert key_value_table_record.table_partition("s", "k") == "key-value-table/s/k"
    assert key_value_table_record.tables_listing_partition("s") == "scope-key-value-tables/s"
    assert key_value_table_record.tables_listing_body() == {"format": 1}
