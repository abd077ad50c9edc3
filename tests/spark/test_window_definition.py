"""What the arguments of a job of windows mean, and the form of its results."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.spark.jobs.window_definition import (
    FIELDS_MAX,
    WindowDefinition,
    number_text,
    result_event,
    window_definition,
)

GIVEN: dict[str, str | None] = {"window_s": "60", "time_field": "at"}


def test_arguments_become_a_definition():
    assert window_definition(GIVEN) == WindowDefinition(60_000, 60_000, "at")
    lists = {"keys": "shop, customer", "sum": "amount,tax", "min": None, "max": "tax", "slide_s": "20"}
    definition = window_definition({**GIVEN, **lists})
    assert definition == WindowDefinition(60_000, 20_000, "at", ("shop", "customer"), ("amount", "tax"), (), ("tax",))
    assert definition.fields() == {
        "at": "string", "shop": "string", "customer": "string", "amount": "double", "tax": "double",
    }  # fmt: skip
    assert list(definition.columns()) == ["window_start", "key_0", "key_1", "count", "sum_0", "sum_1", "max_1"]
    assert json.loads(json.dumps(definition.to_json())) == definition.to_json()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_s": None}, "'window_s': it is required"),
        ({"window_s": "0"}, "'window_s'"),
        ({"window_s": "99999999"}, "'window_s': 99999999 is more than"),
        ({"slide_s": "61"}, "'slide_s': 61 is more than 60"),
        ({"slide_s": "7"}, "7 must divide the 60 s"),
        ({"window_s": "101", "slide_s": "1"}, "into at most 100 parts"),
        ({"time_field": None}, "'time_field': it is required"),
        ({"keys": "a,,b"}, "an empty name"),
        ({"keys": "a,b,a"}, "a name twice"),
        ({"sum": ",".join(f"f{number}" for number in range(FIELDS_MAX + 1))}, "51 fields are too many"),
        ({"keys": "at"}, "the field 'at' would be read as a time, a key or a value twice"),
        ({"keys": "a", "max": "A"}, "the field 'a' would be read"),
        ({"keys": "count"}, "the field 'count' would be written twice"),
        ({"keys": "SUM_x", "sum": "x"}, "the field 'sum_x' would be written twice"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, str | None], message: str):
    with pytest.raises(InvalidRequestError, match=message):
        window_definition({**GIVEN, **arguments})


def test_a_window_becomes_a_json_object():
    definition = window_definition({**GIVEN, "keys": "shop,customer", "sum": "a", "max": "b"})
    row: list[Any] = [-60_000, "nörd", None, 3, Decimal("12.500000000"), None]
    event, key = result_event(definition, row)
    assert json.loads(event) == {
        "window_start": -60_000, "window_end": 0, "shop": "nörd", "customer": None, "count": 3, "sum_a": 12.5,
        "max_b": None,
    }  # fmt: skip
    assert json.loads(key) == ["nörd", None]
    assert result_event(window_definition(GIVEN), [0, 1])[1] == "[]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0E-9", "0"), ("-0.000000000", "0"), ("100.000000000", "100"), ("-1.250000000", "-1.25"),
        ("999999999999999.123456789", "999999999999999.123456789"), ("0.000000001", "0.000000001"),
    ],
)  # fmt: skip
def test_numbers_are_exact(value: str, text: str):
    assert number_text(Decimal(value)) == text


def test_ends_of_windows_are_multiples_of_the_slide():
    definition = window_definition({**GIVEN, "slide_s": "20"})
    assert [definition.aligned(time) for time in (0, 19_999, 20_000, -1)] == [0, 0, 20_000, -20_000]
