"""Columns for the fields of JSON objects: their types, and how a set of columns grows. Pure.

A column is boolean, bigint, double or string. Objects and arrays are kept as strings with their JSON text, so that a
change inside of them changes no column. A column never changes its type, because files with the old type exist.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from headrace.model.errors import InvalidRequestError

COLUMN_TYPES = ("boolean", "bigint", "double", "string")
_BIGINT_BITS = 63


def column_type(value: Any) -> str | None:
    """The type of the column for a value that `json.loads` returned; None for null, which fits every column."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**_BIGINT_BITS) <= value < 2**_BIGINT_BITS else "string"
    return "double" if isinstance(value, float) else "string"


def common_type(one: str, other: str) -> str:
    """A type for values of both types; a string column takes every value, as its JSON text."""
    if one == other:
        return one
    return "double" if {one, other} == {"bigint", "double"} else "string"


def common_types(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The type of each field, from pairs of field and type in any order."""
    types: dict[str, str] = {}
    for name, type_ in found:
        types[name] = common_type(types[name], type_) if name in types else type_
    return types


def new_fields(texts: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Names and types of the fields that have a value in some of the JSON texts and are not known."""
    return common_types(
        (name, type_)
        for text in texts
        for name, value in _fields(text).items()
        if name not in known and (type_ := column_type(value)) is not None
    )


def _fields(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def extended(columns: Mapping[str, str], found: Mapping[str, str], reserved: Collection[str]) -> dict[str, str]:
    """`columns` and, after them in alphabetical order, those of new fields.

    Spark and most catalogs ignore the case of column names. So a field gets no column if its name is empty, or differs
    from another column or a reserved name only in case.
    """
    grown = dict(columns)
    taken = {name.lower() for name in (*columns, *reserved)}
    for name in sorted(found):
        if name and name.lower() not in taken:
            grown[name] = found[name]
            taken.add(name.lower())
    return grown


def parse_columns(text: str) -> dict[str, str]:
    """Columns of an argument like `carrier string, hour bigint`.

    Raises:
        InvalidRequestError: a type is unknown, or a name is given twice.
    """
    columns: dict[str, str] = {}
    for item in text.split(","):
        name, _, type_ = item.strip().rpartition(" ")
        if not name or type_.lower() not in COLUMN_TYPES:
            raise InvalidRequestError(
                f"{item.strip()!r} is not a column: give a name and one of {', '.join(COLUMN_TYPES)}",
                code="invalid_columns",
            )
        if name.strip().lower() in {known.lower() for known in columns}:
            raise InvalidRequestError(f"the column {name.strip()!r} is given twice", code="invalid_columns")
        columns[name.strip()] = type_.lower()
    return columns


def quoted_ddl(columns: Mapping[str, str]) -> str:
    """A schema of these columns in Spark's DDL; names may have any characters."""
    return ", ".join("`" + name.replace("`", "``") + f"` {type_}" for name, type_ in columns.items())
