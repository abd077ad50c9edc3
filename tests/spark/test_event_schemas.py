"""The schema of JSON events: Spark's DDL, strictly, with messages that say what to do."""

from __future__ import annotations

import pickle
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import InvalidRequestError
from headrace.spark.event_schemas import (
    FIELDS_MAX,
    SCALAR_TYPES,
    SCHEMA_CHARS_MAX,
    ArrayType,
    DecimalType,
    EventType,
    Field,
    MapType,
    ScalarType,
    StructType,
    parse_event_schema,
)

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def structs(types: st.SearchStrategy[EventType]) -> st.SearchStrategy[StructType]:
    pairs = st.lists(st.tuples(NAMES, types), min_size=1, max_size=4, unique_by=lambda pair: pair[0].lower())
    return pairs.map(lambda found: StructType(tuple(Field(name, kind) for name, kind in found)))


DECIMALS = st.integers(1, 38).flatmap(lambda digits: st.builds(DecimalType, st.just(digits), st.integers(0, digits)))
TYPES: st.SearchStrategy[EventType] = st.recursive(
    st.sampled_from(SCALAR_TYPES).map(ScalarType) | DECIMALS,
    lambda inner: inner.map(ArrayType) | inner.map(MapType) | structs(inner),
    max_leaves=6,
)


@settings(max_examples=60)
@given(structs(TYPES))
def test_a_schema_is_read_back_from_its_ddl(schema: StructType) -> None:
    ddl = schema.ddl().removeprefix("struct<").removesuffix(">")
    assert parse_event_schema(ddl) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


@given(st.text(st.sampled_from("ab `<>(),:1\nstructaraymp\u00e9")))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    with suppress(InvalidRequestError):
        ddl = parse_event_schema(text).ddl().removeprefix("struct<").removesuffix(">")
        assert parse_event_schema(ddl).ddl() == f"struct<{ddl}>"


def test_aliases_and_case_are_those_of_spark() -> None:
    schema = parse_event_schema(" a LONG,b Integer , c struct<x short, y: byte>, `d``e` numeric(5), f dec, g real")
    assert str(schema) == (
        "struct<a:bigint,b:int,c:struct<x:smallint,y:tinyint>,d`e:decimal(5,0),f:decimal(10,0),g:float>"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the end in the place of the name"),
        ("id", "the end in the place of a type"),
        ("id bigint,", "the end in the place of the name"),
        ("id bigint name string", "'name' in the place of a comma or the end"),
        ("id number", "'number' is not a type of a JSON event; there are boolean"),
        ("id interval", "not a type"),
        ("id `bigint`", "'bigint' in the place of a type"),
        ("id bigint NOT NULL", "may always be null"),
        ("id bigint COMMENT 'x'", "name or a type|neither a name nor a type"),
        ("id bigint, ID int", "'ID' is given twice"),
        ("place struct<>", "'>' in the place of the name"),
        ("place struct<a int, A int>", "given twice"),
        ("tags array", "the end in the place of '<'"),
        ("tags array<string", "the end in the place of '>'"),
        ("m map<int,string>", "write map<string,...>"),
        ("price decimal(39,0)", "does not exist"),
        ("price decimal(5,6)", "does not exist"),
        ("price decimal(0)", "does not exist"),
        ("price decimal(x)", "'x' in the place of a number"),
        ("price decimal(\u0663)", "in the place of a number"),
        ("a-b int", "'-b int' is neither a name nor a type; quote a name"),
        ("`` int", "neither a name nor a type"),
        ("x " + "array<" * 17 + "int" + ">" * 17, "nested more than 16 deep"),
        ("x " + "array<" * 9_000, "nested more than 16 deep"),
        (", ".join(f"f{number} int" for number in range(FIELDS_MAX + 1)), "more than 2000 fields"),
        ("x" * (SCHEMA_CHARS_MAX + 1), "more than 65536"),
    ],
)
def test_wrong_schemas_say_what_to_do(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_event_schema(text)
