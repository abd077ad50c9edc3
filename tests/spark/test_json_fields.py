"""Columns of JSON fields: types by value, one type per column for ever, names that differ in more than case."""

from __future__ import annotations

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.spark.jobs.json_records import common_types, extended, new_fields, parse_columns


@pytest.mark.parametrize(
    ("texts", "types"),
    [
        (['{"a": 1}', '{"a": null}'], {"a": "bigint"}),
        (['{"a": 1}', '{"a": 1.5}'], {"a": "double"}),
        (['{"a": 1.5}', '{"a": true}'], {"a": "string"}),
        (['{"a": true}'], {"a": "boolean"}),
        (['{"a": {"b": 1}}'], {"a": "string"}),
        (['{"a": [1]}', '{"b": "x"}'], {"a": "string", "b": "string"}),
        (['{"a": 9223372036854775807}'], {"a": "bigint"}),
        (['{"a": 9223372036854775808}'], {"a": "string"}),
        (['{"a": null}', '{"known": 1}', "no json", "[1]", "[" * 100_000], {}),
    ],
)
def test_a_new_field_gets_the_type_of_its_values(texts: list[str], types: dict[str, str]):
    assert new_fields(texts, {"known"}) == types
    assert new_fields(reversed(texts), {"known"}) == types


def test_types_of_tasks_are_combined_in_any_order():
    found = [("a", "bigint"), ("a", "double"), ("b", "boolean"), ("a", "bigint"), ("b", "bigint")]
    assert common_types(found) == common_types(reversed(found)) == {"a": "double", "b": "string"}


def test_new_columns_come_last_and_old_ones_stay():
    grown = extended({"z": "bigint"}, {"b": "string", "a": "double", "z": "string"}, ["offset"])
    assert list(grown.items()) == [("z", "bigint"), ("a", "double"), ("b", "string")]


def test_names_that_differ_in_case_only_get_one_column():
    assert extended({"a": "bigint"}, {"A": "string", "B": "string", "b": "double", "Offset": "bigint", "": "string"},
                    ["offset"]) == {"a": "bigint", "B": "string"}  # fmt: skip


def test_columns_are_parsed():
    assert parse_columns("carrier string, dep hour BIGINT") == {"carrier": "string", "dep hour": "bigint"}


@pytest.mark.parametrize("text", ["", "a", "a int", "a string, A bigint"])
def test_other_columns_are_refused(text: str):
    with pytest.raises(InvalidRequestError, match=r"is not a column|given twice"):
        parse_columns(text)
