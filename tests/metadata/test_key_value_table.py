"""The records of a key-value table: golden values and keys."""

from __future__ import annotations

from typing import Any

import pytest
from golden_records import GoldenRecords

from headrace.metadata.key_value_table import (
    decode_table,
    decode_table_tombstone,
    table_body,
    table_key,
    table_tombstone_body,
)
from headrace.model.errors import CorruptError
from headrace.model.key_value_tables import TableConfiguration, new_table, table_created
from headrace.ports.metadata_store import Key

TABLE = new_table("s", "k", TableConfiguration(3, 4, 2, 99), 6, 1_000)


class TestKeyValueTable(GoldenRecords):
    shapes = {
        "key-value table": (
            TABLE,
            table_body,
            decode_table,
            {
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
            },
        ),
        "key-value table tombstone": (
            TABLE.next_segment_number,
            table_tombstone_body,
            decode_table_tombstone,
            {"format": 1, "next_number": 9},
        ),
    }


def test_key():
    assert table_key("s", "k") == Key("key-value-table/s/k", "current")


def test_an_open_table_comes_back():
    opened = table_created(TABLE)
    assert decode_table(table_body(opened)) == opened


def test_a_tombstone_is_not_a_table():
    assert decode_table(table_tombstone_body(9)) is None


@pytest.mark.parametrize("change", [{"state": "MELTING"}, {"configuration": {}}])
def test_a_table_that_cannot_be_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_table({**table_body(TABLE), **change})
