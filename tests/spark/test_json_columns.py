"""JSON events into columns: good ones with exact values, bad ones with a reason, and none ends the process."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.codec.event_columns import EventColumns, int64_array
from headrace.codec.strict_json import NESTING_MAX
from headrace.spark.event_schemas import (
    ArrayType,
    DecimalType,
    EventType,
    Field,
    MapType,
    ScalarType,
    StructType,
    parse_event_schema,
)
from headrace.spark.json_columns import RECORD_BYTES_MAX, JsonColumns, arrow_type, json_columns
from headrace.spark.row_batches import SLICE_BYTES, event_slices

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.dates(date(1, 1, 3), date(9999, 12, 29)).flatmap(
    lambda day: st.times().map(lambda clock: datetime.combine(day, clock))
)

Pair = tuple[Any, Any]
"""A value as `json.dumps` takes it, and as the column has it."""


def same(value: Any) -> Pair:
    return value, value


def integers(bits: int) -> st.SearchStrategy[Pair]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(same)


SCALARS: dict[str, st.SearchStrategy[Pair]] = {
    "boolean": st.booleans().map(same),
    "tinyint": integers(8),
    "smallint": integers(16),
    "int": integers(32),
    "bigint": integers(64),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False).map(same),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(same)
    | st.integers(-(2**70), 2**70).map(lambda number: (number, float(number))),
    "string": TEXTS.map(same),
    "binary": st.binary(max_size=8).map(lambda data: (base64.b64encode(data).decode(), data)),
    "date": st.dates().map(lambda day: (day.isoformat(), day)),
    "timestamp": st.builds(lambda time, zone: time.replace(tzinfo=zone), TIMES, ZONES).map(
        lambda time: (time.isoformat(), time)
    ),
    "timestamp_ntz": TIMES.map(lambda time: (time.isoformat(sep=" "), time)),
}


def decimals(kind: DecimalType) -> st.SearchStrategy[Pair]:
    most = 10**kind.precision - 1
    exact = st.integers(-most, most).map(lambda digits: Decimal(digits).scaleb(-kind.scale, Context(prec=38)))
    return exact.map(lambda value: (f"{value:f}", value))


def values(kind: EventType) -> st.SearchStrategy[Pair]:
    return st.just((None, None)) | present_values(kind)


def present_values(kind: EventType) -> st.SearchStrategy[Pair]:
    match kind:
        case ScalarType():
            return SCALARS[kind.name]
        case DecimalType():
            return decimals(kind)
        case ArrayType():
            return st.lists(values(kind.element), max_size=3).map(
                lambda pairs: ([given for given, _ in pairs], [found for _, found in pairs])
            )
        case MapType():
            return st.dictionaries(TEXTS, values(kind.value), max_size=3).map(
                lambda pairs: (
                    {name: given for name, (given, _) in pairs.items()},
                    [(name, found) for name, (_, found) in pairs.items()],
                )
            )
        case StructType():
            fields = st.fixed_dictionaries({}, optional={field.name: values(field.type) for field in kind.fields})
            return fields.map(
                lambda pairs: (
                    {name: given for name, (given, _) in pairs.items()},
                    {field.name: pairs.get(field.name, (None, None))[1] for field in kind.fields},
                )
            )


TYPES: st.SearchStrategy[EventType] = st.recursive(
    st.sampled_from(sorted(SCALARS)).map(ScalarType) | st.sampled_from([DecimalType(10, 2), DecimalType(38, 38)]),
    lambda inner: inner.map(ArrayType) | inner.map(MapType) | inner.map(lambda kind: StructType((Field("x", kind),))),
    max_leaves=4,
)
SCHEMAS = st.lists(TYPES, min_size=1, max_size=4).map(
    lambda kinds: StructType(tuple(Field(f"field {number}", kind) for number, kind in enumerate(kinds)))
)


def parsed(schema: StructType | str, *events: bytes) -> JsonColumns:
    known = parse_event_schema(schema) if isinstance(schema, str) else schema
    found = json_columns(known, pa.array(events, pa.binary()))
    for column, field in zip(found.columns, known.fields, strict=True):
        column.validate(full=True)
        assert column.type == arrow_type(field.type)
        assert len(column) == len(events)
    return found


def rows(found: JsonColumns) -> list[list[Any]]:
    return [list(row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


@settings(max_examples=60)
@given(st.data())
def test_what_was_dumped_is_what_is_read(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    records = data.draw(st.lists(present_values(schema), max_size=4))
    spaced = data.draw(st.booleans())
    texts = [json.dumps(record, ensure_ascii=spaced, indent=1 if spaced else None) for record, _ in records]
    found = parsed(schema, *(text.encode() for text in texts))
    assert found.bad == {}
    assert rows(found) == [list(row.values()) for _, row in records]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | TEXTS
    | st.sampled_from(["2026-11-23", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "field 0", ""]), inner),
    max_leaves=5,
)


@given(
    SCHEMAS, st.lists(JSON_VALUES.map(lambda value: json.dumps({"field 0": value}).encode()) | st.binary(), max_size=6)
)
def test_a_record_is_judged_by_itself_alone(schema: StructType, events: list[bytes]) -> None:
    together = parsed(schema, *events)
    alone = [parsed(schema, event) for event in events]
    assert together.bad == {number: parsed.bad[0] for number, parsed in enumerate(alone) if parsed.bad}
    assert rows(together) == [rows(parsed)[0] for parsed in alone]
    assert all(value is None for number in together.bad for value in rows(together)[number])


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"null", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'"{}"', "not a JSON object"),
        (b"{", "not JSON"),
        (b'{"id":1}{}', "Extra data"),
        (b"{'id':1}", "not JSON"),
        (b'{"id":01}', "not JSON"),
        (b'{"id":1,}', "not JSON"),
        (b'{"name":"\n"}', "control character"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'{"name":"\xff"}', "not UTF-8: invalid start byte at byte 9"),
        (b'{"name":"\xed\xa0\x80"}', "not UTF-8"),
        (b'{"x":NaN}', "NaN is not a number"),
        (b'{"d":-Infinity}', "-Infinity is not a number"),
        (b'{"id":1,"id":1}', "occurs twice"),
        (b'{"x":[{"y":1,"y":2}]}', "occurs twice"),
        (b'{"id":1.0}', "'id': there is a number with a fraction"),
        (b'{"id":1e2}', "'id': there is a number with a fraction"),
        (b'{"id":"1"}', "'id': there is a string in the place of a whole number (bigint)"),
        (b'{"id":true}', "'id': there is a boolean"),
        (b'{"id":9223372036854775808}', "'id': the number is outside the range of bigint"),
        (b'{"id":' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"f":1e39}', "'f': the number is outside the range of float"),
        (b'{"d":1e400}', "'d': the number is outside the range of double"),
        (b'{"d":' + b"9" * 400 + b"}", "'d': the number is outside the range of double"),
        (b'{"d":"NaN"}', "'d': there is a string"),
        (b'{"name":1}', "'name': there is a whole number in the place of a string"),
        (b'{"name":{"a":1}}', "'name': there is an object"),
        (b'{"name":"\\ud800"}', "'name': the string has half of a surrogate pair"),
        (b'{"raw":"A"}', "'raw': the string is not base64"),
        (b'{"raw":"\\u00e9"}', "'raw': the string is not base64"),
        (b'{"day":"2026-02-30"}', "'day': the string is not a date"),
        (b'{"day":"2026-1-1"}', "'day': the string is not a date"),
        (b'{"day":20000}', "'day': there is a whole number"),
        (b'{"at":"2026-11-23T10:00:00"}', "for times without a zone use timestamp_ntz"),
        (b'{"at":"2026-11-23T24:00:00Z"}', "'at': the string is not a time with its zone"),
        (b'{"at":"2026-11-23T10:00:60Z"}', "'at': the string is not a time"),
        (b'{"at":"0001-01-01T00:00:00+01:00"}', "'at': the string is not a time"),
        (b'{"at":"2026-W48-1T10:00:00Z"}', "'at': the string is not a time"),
        (b'{"at":1795428000}', "'at': there is a whole number in the place of a time"),
        (b'{"local":"2026-11-23T10:00:00Z"}', "'local': the string is not a time without a zone"),
        (b'{"price":1.005}', "'price': the number does not fit decimal(5,2) without rounding"),
        (b'{"price":1000}', "'price': the number does not fit"),
        (b'{"price":1e999999999}', "'price': the number does not fit"),
        (b'{"price":1e99999999999999999999}', "'price': the number does not fit"),
        (b'{"price":"1.0\\n"}', "'price': the string is not a number"),
        (b'{"price":"Infinity"}', "'price': the string is not a number"),
        (b'{"tags":"a"}', "'tags': there is a string in the place of an array"),
        (b'{"tags":["a",["b"]]}', "'tags[]': there is an array in the place of a string"),
        (b'{"m":[]}', "'m': there is an array in the place of an object"),
        (b'{"m":{"k":"v"}}', "'m.value': there is a string"),
        (b'{"m":{"\\udc00":1}}', "'m.key': the string has half"),
        (b'{"place":{"lat":"1"}}', "'place.lat': there is a string in the place of a number"),
        (b'{"x":' + b"[" * NESTING_MAX + b"]" * NESTING_MAX + b"}", "nested more than 100 deep"),
    ],
)
def test_bad_records_have_a_reason(event: bytes, reason: str) -> None:
    schema = (
        "id bigint, f float, d double, name string, raw binary, day date, at timestamp, local timestamp_ntz,"
        " price decimal(5,2), tags array<string>, m map<string,int>, place struct<lat double>"
    )
    found = parsed(schema, b'{"id":1}', event, b'{"id":2}')
    assert list(found.bad) == [1]
    assert reason in found.bad[1]
    assert len(found.bad[1]) < 200
    assert [row[0] for row in rows(found)] == [1, None, 2]
    assert set(rows(found)[1]) == {None}


@pytest.mark.parametrize(
    ("schema", "event", "value"),
    [
        ("at timestamp", b'{"at":"2026-11-23T10:00:00.123456789Z"}', "2026-11-23 10:00:00.123456+00:00"),
        ("at timestamp", b'{"at":"2026-11-23 10:00-0130"}', "2026-11-23 11:30:00+00:00"),
        ("price decimal(5,2)", b'{"price":1.1000}', "1.10"),
        ("price decimal(5,2)", b'{"price":0e99}', "0.00"),
        ("price decimal(38,0)", b'{"price":12345678901234567890123456789012345678}', "1234567890" * 3 + "12345678"),
        ("price decimal(38,38)", b'{"price":"0.' + b"9" * 38 + b'"}', "0." + "9" * 38),
        ("price decimal(20,18)", b'{"price":0.123456789012345678}', "0.123456789012345678"),
        ("d double, price decimal(1)", b'{"d":0.1}', "0.1"),
        ("d double", b'{"d":9007199254740993}', "9007199254740992.0"),
        ("d double", b'{"d":1e-400}', "0.0"),
        ("f float", b'{"f":0.1}', "0.10000000149011612"),
        ("name string", b'{"name":"\\ud83d\\ude00"}', "\U0001f600"),
        ("`A` int", b'{"a":1,"A":2}', "2"),
    ],
)
def test_values_are_exact(schema: str, event: bytes, value: str) -> None:
    found = parsed(schema, event)
    assert found.bad == {}
    assert str(rows(found)[0][0]) == value


def test_brackets_in_strings_are_not_nesting() -> None:
    text = json.dumps({"name": '[{"' * 500 + "\\"}).encode()
    deep = b'{"x":' + b"[" * (NESTING_MAX - 1) + b"]" * (NESTING_MAX - 1) + b',"y":[[],[],{}]}'
    found = parsed("name string", text, deep)
    assert found.bad == {}
    assert rows(found) == [['[{"' * 500 + "\\"], [None]]


def test_large_events_are_bad_and_not_parsed() -> None:
    large = b'{"name":"' + b"x" * (RECORD_BYTES_MAX - 11) + b'"}'
    wide = json.dumps({"name": "\u00e9" * (RECORD_BYTES_MAX // 2)}, ensure_ascii=False).encode()
    found = parsed("name string", large, large + b" ", wide)
    assert found.bad == dict.fromkeys((1, 2), "it has more than 8388608 bytes")


HOSTILE = """
import resource, sys
import pyarrow as pa
from headrace.spark.event_schemas import parse_event_schema
from headrace.spark.json_columns import json_columns
schema = parse_event_schema("id bigint, price decimal(10,2), name string")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = 2 * 1024 * 1024
for event in (
    b"[" * size,
    b'{"a":' * (size // 5),
    b'"' * size,
    b"\\\\" * size,
    b'{"x":[' + b"{}," * (size // 3 - 9) + b"1]}",
    b'{"name":"' + b'\\\\"' * (size // 2 - 9),
    b'{"price":' + b"9" * 4000 + b".1e-" + b"9" * 4000 + b"}",
):
    found = json_columns(schema, pa.array([event], pa.binary()))
    print(found.bad.get(0))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_hostile_events_neither_crash_nor_take_memory() -> None:
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, check=True)
    *reasons, grown_mib = done.stdout.splitlines()
    assert reasons[:2] == ["it is nested more than 100 deep"] * 2
    assert [reason.split(":")[0] for reason in reasons[2:]] == [
        "it is not JSON",
        "it is not JSON",
        "None",
        "it is not JSON",
        "field 'price'",
    ]
    assert int(grown_mib) < 30 * 2 + 20, "30 times the event, and some for numpy's work"


@settings(max_examples=50)
@given(st.lists(st.sampled_from([0, 1, SLICE_BYTES // 2, SLICE_BYTES, SLICE_BYTES + 1]), max_size=8), st.integers(0, 3))
def test_slices_have_all_events_and_few_bytes(sizes: list[int], skipped: int) -> None:
    payloads = pa.array([bytes(size) for size in sizes], pa.binary()).slice(skipped)
    offsets = int64_array(np.arange(len(payloads), dtype=np.int64))
    slices = list(event_slices(EventColumns(payloads, offsets, 0)))
    assert [offset for json_slice in slices for offset in json_slice.offsets.to_pylist()] == offsets.to_pylist()
    lengths = [[len(event.as_py()) for event in json_slice.events] for json_slice in slices]
    assert [length for own_lengths in lengths for length in own_lengths] == sizes[skipped:]
    assert all(len(own_lengths) == 1 or sum(own_lengths) <= SLICE_BYTES for own_lengths in lengths)
    assert all(sum(own_lengths) + after[0] > SLICE_BYTES for own_lengths, after in pairwise(lengths)), (
        "no slice is needlessly small"
    )


def test_dates_are_those_of_the_calendar() -> None:
    found = parsed("day date", b'{"day":"0001-01-01"}', b'{"day":"9999-12-31"}')
    assert rows(found) == [[date(1, 1, 1)], [date(9999, 12, 31)]]
