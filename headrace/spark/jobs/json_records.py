"""Events that should be JSON objects: their fields as columns, and the others for the quarantine, with a reason.

`classified` adds two columns to the events: `record`, a struct of the fields, and `reason`, which is null for a good
record. A bad record never fails a query.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.model.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa


# Columns for the fields of JSON objects: their types, and how a set of columns grows. Pure.
#
# A column is boolean, bigint, double or string. Objects and arrays are kept as strings with their JSON text, so that a
# change inside of them changes no column. A column never changes its type, because files with the old type exist.

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


def common_type(first: str, second: str) -> str:
    """A type for values of both types; a string column takes every value, as its JSON text."""
    if first == second:
        return first
    return "double" if {first, second} == {"bigint", "double"} else "string"


def common_types(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The type of each field, from pairs of field and type in any order."""
    types: dict[str, str] = {}
    for name, type_ in fields:
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


def extended(columns: Mapping[str, str], fields: Mapping[str, str], reserved: Collection[str]) -> dict[str, str]:
    """`columns` and, after them in alphabetical order, those of new fields.

    Spark and most catalogs ignore the case of column names. So a field gets no column if its name is empty, or differs
    from another column or a reserved name only in case.
    """
    grown = dict(columns)
    taken = {name.lower() for name in (*columns, *reserved)}
    for name in sorted(fields):
        if name and name.lower() not in taken:
            grown[name] = fields[name]
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


NOT_UTF8 = "not_utf8"
NOT_AN_OBJECT = "not_a_json_object"
REPEATED_FIELD = "repeated_field"
FIELD_MISSING = "field_missing"
FIELD_NAME = "field_name"
FIELD_TYPE = "field_type"

QUARANTINE_COLUMNS = {"segment_id": "bigint", "offset": "bigint", "reason": "string", "event": "binary"}
"""Where the event is in the stream, why it is here, and its bytes."""

_CORRUPT = "headrace corrupt record"
"""Spark's column for records that do not fit; a field with this name is not expected."""


def classified(events: DataFrame, columns: Mapping[str, str], *, required: Collection[str] = ()) -> DataFrame:
    """The events (columns `event`, `segment_id`, `offset`) with `record`, `reason` and `fields`.

    `columns` are names and types of the fields to read. A record is bad if it lacks a `required` field. `fields` are
    the names in the object.
    """
    text = F.col("event").cast("string")
    ddl = quoted_ddl({**columns, _CORRUPT: "string"})
    settings = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    settings |= {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    parsed = events.withColumns(
        {"record": F.from_json(text, ddl, settings), "fields": F.json_object_keys(text), "is_utf8": _is_utf8()}
    )
    names = F.col("fields")
    missing = [F.col("record").getField(name).isNull() for name in required]
    reason = (
        F.when(~F.col("is_utf8"), F.lit(NOT_UTF8))
        .when(names.isNull(), F.lit(NOT_AN_OBJECT))
        .when(F.size(names) != F.size(F.array_distinct(names)), F.lit(REPEATED_FIELD))
        .when(F.col("record").getField(_CORRUPT).isNotNull(), F.lit(FIELD_TYPE))
    )
    for is_missing in missing:
        reason = reason.when(is_missing, F.lit(FIELD_MISSING))
    return parsed.withColumn("reason", reason).drop("is_utf8")


def with_strict_names(records: DataFrame, columns: Collection[str], reserved: Collection[str]) -> DataFrame:
    """Classified records, of which those are bad that have a field which can get no column (see `extended`)."""
    taken = [name.lower() for name in (*columns, *reserved)]
    unknown = F.array_except("fields", _names(columns))
    clashing = F.exists(unknown, lambda name: (F.length(name) == 0) | F.lower(name).isin(taken))
    reason = F.coalesce(F.col("reason"), F.when(clashing, F.lit(FIELD_NAME)))
    return records.withColumn("reason", reason)


def has_new_fields(columns: Collection[str]) -> Column:
    """Whether a good classified record has a field that is not among the columns."""
    return F.col("reason").isNull() & (F.size(F.array_except("fields", _names(columns))) > 0)


def good_rows(records: DataFrame, columns: Collection[str], *, keep: Mapping[str, str] | None = None) -> DataFrame:
    """The fields of the good records; `keep` names further columns of the events and what they are called."""
    kept = [F.col(name).alias(new) for name, new in (keep or {}).items()]
    fields = [F.col("record").getField(name).alias(name) for name in columns]
    return records.filter("reason is null").select(*kept, *fields)


def quarantined(records: DataFrame) -> DataFrame:
    """The bad records as `QUARANTINE_COLUMNS`."""
    return records.filter("reason is not null").select(*QUARANTINE_COLUMNS)


def fields_without_column(records: DataFrame, columns: Collection[str]) -> dict[str, str]:
    """Names and types of the new fields in the good records; starts a job."""
    texts = records.filter(has_new_fields(columns)).select(F.col("event").cast("string").alias("text"))
    types = texts.mapInArrow(partial(_new_fields, tuple(columns)), "name string, type string").distinct().collect()
    return common_types((row["name"], row["type"]) for row in types)


def _new_fields(known: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In tasks: the new fields of each Arrow batch of texts."""
    import pyarrow as pa

    for batch in batches:
        fields = new_fields(batch.column(0).to_pylist(), known)
        yield pa.RecordBatch.from_pydict(
            {"name": pa.array(fields.keys(), pa.string()), "type": pa.array(fields.values(), pa.string())}
        )


def _names(columns: Collection[str]) -> Column:
    return F.array(*(F.lit(name) for name in columns)).cast("array<string>")


def _is_utf8() -> Column:
    """Spark 3.5 cannot check a text, but decodes with replacement characters; Spark 4 fails at decoding."""
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(F.col("event").cast("string"))
    return F.encode(F.decode("event", "UTF-8"), "UTF-8") == F.col("event")
