"""JSON documents: names, numbers of libraries, and which fields of a document no class has."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from headrace.model.documents import Document, about, plain_value, unknown_fields


class Part(Document, frozen=True):
    offset: int = 0


class Whole(Document, frozen=True):
    first_part: Part = Part()
    parts: tuple[Part, ...] = ()
    tags: tuple[str, ...] = ()
    counts: Annotated[dict[int, int], about("How many of each.")] = {}
    lease_end_ms: int = 0


@pytest.mark.parametrize(
    ("document", "unknown"),
    [
        ({}, []),
        ({"firstPart": {"offset": 1}, "leaseEnd": 5, "tags": ["b", "a"], "parts": []}, []),
        ({"lease_end_ms": 1, "first": 2}, [("lease_end_ms",), ("first",)]),
        ({"firstPart": {"offset": 1, "size": 2}}, [("firstPart", "size")]),
        (
            {"parts": [{"a": 1}, {"offset": 2}, {"b": 1, "c": 2}], "d": 0},
            [("parts", 0, "a"), ("parts", 2, "b"), ("parts", 2, "c"), ("d",)],
        ),
    ],
)
def test_fields_that_no_class_has_are_found(document: dict[str, object], unknown: list[tuple[str | int, ...]]) -> None:
    assert list(unknown_fields(document, Whole.from_json(document))) == unknown


def test_keys_of_json_are_texts() -> None:
    whole = Whole(counts={1: 2})
    assert whole.to_json()["counts"] == {"1": 2}
    assert Whole.from_json({"counts": {"1": 2}}) == whole


def test_a_field_has_its_description() -> None:
    (schema,) = (each for name, each in msgspec.json.schema_components([Whole])[1].items() if name == "Whole")
    assert schema["properties"]["counts"]["description"] == "How many of each."


def test_only_numbers_and_texts_of_libraries_are_values() -> None:
    with pytest.raises(TypeError, match="object is not a value of JSON"):
        plain_value(object())
