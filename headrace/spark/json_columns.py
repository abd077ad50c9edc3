"""JSON objects into Arrow columns of a schema, a column at a time, which Arrow does faster than a row at a time.

Whether a record is bad depends on that record alone, never on the others of its batch: a batch that is read again, cut
at other places, has the same rows. So the fast way, a whole column at once, is taken only where it gives what the rules
of `json_values` give for each value.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import repeat
from math import isfinite
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.codec.strict_json import RefusedJsonError, not_utf8, parse_json, text_of
from headrace.model.limits import EVENT_BYTES_MAX
from headrace.spark.event_schemas import (
    PRECISION_MAX,
    ArrayType,
    DecimalType,
    EventType,
    Field,
    MapType,
    ScalarType,
    StructType,
)

# JSON values into the values of a schema's scalar types, one at a time: strict, so that no value changes silently.
#
# Each function takes a value that is not null and returns what Arrow takes, or raises ValueError with a text for
# people. The texts never quote the value, which may be personal data.

Convert = Callable[[Any], Any]

_DATE: Final = r"\d{4}-\d{2}-\d{2}"
_TIME: Final = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{1,9})?)?"
_ZONE: Final = r"(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)"
_IS_DATE: Final = re.compile(_DATE, re.ASCII)
_IS_ZONED: Final = re.compile(rf"{_DATE}[T ]{_TIME}{_ZONE}", re.ASCII)
_IS_LOCAL: Final = re.compile(rf"{_DATE}[T ]{_TIME}", re.ASCII)
_IS_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_DECIMAL_CHARS_MAX: Final = 200
"""Of a decimal in a string. No type has more digits than PRECISION_MAX."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_LOCAL: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - times without a zone are counted from it
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACTLY: Final = Context(prec=PRECISION_MAX, traps=[InvalidOperation, Inexact])

_KINDS: Final = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number with a fraction or an exponent",
    Decimal: "a number with a fraction or an exponent",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def wrong_kind(value: Any, expected: object) -> ValueError:
    return ValueError(f"there is {_KINDS[type(value)]} in the place of {expected}")


def converter(kind: ScalarType | DecimalType) -> Convert:
    """The function for values of a type."""
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if kind.name in _INTEGER_BITS:
        return _integer(kind.name, _INTEGER_BITS[kind.name])
    return _CONVERTERS[kind.name]


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise wrong_kind(value, "a boolean")
    return value


def _integer(name: str, bits: int) -> Convert:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        if type(value) is not int:
            raise wrong_kind(value, f"a whole number ({name})")
        if not least <= value <= most:
            raise ValueError(f"the number is outside the range of {name}")
        return value

    return convert


def _double(value: Any) -> float:
    if type(value) not in (int, float, Decimal):
        raise wrong_kind(value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise ValueError("the number is outside the range of double")
    return number


def _float(value: Any) -> float:
    number = _double(value)
    try:
        struct.pack("<f", number)
    except OverflowError:
        raise ValueError("the number is outside the range of float") from None
    return number


def _string(value: Any) -> str:
    if type(value) is not str:
        raise wrong_kind(value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("the string has half of a surrogate pair") from None
    return value


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise wrong_kind(value, "base64 in a string")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise ValueError("the string is not base64") from None


def _date(value: Any) -> date:
    if type(value) is not str:
        raise wrong_kind(value, "a date in a string")
    try:
        if _IS_DATE.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise ValueError("the string is not a date like 2026-11-23")


def _timestamp(value: Any) -> int:
    """Microseconds since the epoch; more digits of the second are cut off."""
    if type(value) is not str:
        raise wrong_kind(value, "a time in a string")
    try:
        if _IS_ZONED.fullmatch(value):
            return (datetime.fromisoformat(value).astimezone(UTC) - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        pass
    hint = "; for times without a zone use timestamp_ntz" if _IS_LOCAL.fullmatch(value) else ""
    raise ValueError(f"the string is not a time with its zone like 2026-11-23T10:00:00.5Z{hint}")


def _timestamp_ntz(value: Any) -> int:
    """Microseconds since 1970-01-01T00:00:00 of the same, unnamed clock."""
    if type(value) is not str:
        raise wrong_kind(value, "a time in a string")
    try:
        if _IS_LOCAL.fullmatch(value):
            return (datetime.fromisoformat(value) - _EPOCH_LOCAL) // _MICROSECOND
    except ValueError:
        pass
    raise ValueError("the string is not a time without a zone like 2026-11-23T10:00:00.5")


def _decimal(kind: DecimalType) -> Convert:
    unit = Decimal(1).scaleb(-kind.scale)
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: Any) -> Decimal:
        """A value that would have to be rounded is refused. Numbers in strings keep their digits in every program."""
        if type(value) is str:
            if len(value) > _DECIMAL_CHARS_MAX or not _IS_NUMBER.fullmatch(value):
                raise ValueError("the string is not a number")
        elif type(value) not in (int, float, Decimal):
            raise wrong_kind(value, "a number")
        try:
            number = Decimal(value).quantize(unit, context=_EXACTLY)
        except (InvalidOperation, Inexact):
            raise ValueError(f"the number does not fit {kind} without rounding") from None
        if not -limit < number < limit:  # abs() returns the digits of the default context only
            raise ValueError(f"the number does not fit {kind} without rounding")
        return number

    return convert


_INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_CONVERTERS: Final[dict[str, Convert]] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}


# Events into JSON objects, strictly: an event is one object as `headrace.codec.strict_json` reads it, or it is bad.
#
# Hostile events must not take the memory of the process: an object of Python takes up to 30 times the bytes of its
# text. So the bytes are bounded before the parser runs.

RECORD_BYTES_MAX: Final = EVENT_BYTES_MAX
"""Of an event that is parsed: what a transaction accepts. Large events have more."""

Document = dict[str, Any]
BadRecords = dict[int, str]
"""The reason why an event is bad, by its number in the batch."""

_NOTHING: Final[Document] = {}


def parse_documents(events: pa.BinaryArray, *, exact_numbers: bool) -> tuple[list[Document], BadRecords]:
    """The object of each event; an empty one for a bad event.

    With `exact_numbers`, numbers with a fraction or an exponent are `Decimal`, else float.
    """
    documents: list[Document] = []
    bad: BadRecords = {}
    for number, event in enumerate(_texts(events)):
        try:
            documents.append(_document(event, exact_numbers))
        except RefusedJsonError as error:
            bad[number] = str(error)
            documents.append(_NOTHING)
    return documents, bad


def _texts(events: pa.BinaryArray) -> Sequence[str | bytes]:
    """All as text if all are UTF-8, which Arrow checks faster."""
    try:
        return pc.cast(events, pa.string()).to_pylist()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        return events.to_pylist()  # type: ignore[no-any-return]


def _document(event: str | bytes, exact_numbers: bool) -> Document:
    if len(event) > RECORD_BYTES_MAX or (isinstance(event, str) and not _is_short(event)):
        raise RefusedJsonError(f"it has more than {RECORD_BYTES_MAX} bytes")
    document = parse_json(event if isinstance(event, str) else text_of(event), exact_numbers=exact_numbers)
    if type(document) is not dict:
        raise RefusedJsonError("it is not a JSON object")
    return document


def _is_short(text: str) -> bool:
    """Whether the bytes of a text are within the limit; they are counted only if it could be too long."""
    return len(text) * 4 <= RECORD_BYTES_MAX or len(text.encode()) <= RECORD_BYTES_MAX


_ARROW_TYPES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NULL: Final = type(None)
_AS_THEY_ARE: Final = {
    "boolean": {bool, _NULL},
    "tinyint": {int, _NULL},
    "smallint": {int, _NULL},
    "int": {int, _NULL},
    "bigint": {int, _NULL},
    "double": {float, _NULL},
    "string": {str, _NULL},
}
"""The types of values that Arrow takes without a change, or refuses as the rules do."""


@dataclass(frozen=True, slots=True)
class JsonColumns:
    """The columns of a schema, for each record. A bad record is null in all of them."""

    columns: list[pa.Array]
    bad: BadRecords


def json_columns(schema: StructType, events: pa.BinaryArray) -> JsonColumns:
    """The fields of each event. Nothing in an event raises."""
    documents, bad = parse_documents(events, exact_numbers=_has_decimals(schema))
    builder = _Builder(bad)
    records = range(len(documents))
    columns = [
        builder.column(field.type, [document.get(field.name) for document in documents], records, field.name)
        for field in schema.fields
    ]
    if bad:
        kept = pa.array([None if record in bad else record for record in records], pa.int32())
        columns = [column.take(kept) for column in columns]
    return JsonColumns(columns, bad)


def text_column(events: pa.BinaryArray) -> JsonColumns:
    """The events themselves, if they are UTF-8."""
    try:
        return JsonColumns([pc.cast(events, pa.string())], {})
    except pa.ArrowInvalid:  # Arrow does not say which.
        bad: BadRecords = {}
    for number, event in enumerate(events.to_pylist()):
        try:
            event.decode()
        except UnicodeDecodeError as error:
            bad[number] = not_utf8(error)
    kept = pa.array([None if record in bad else record for record in range(len(events))], pa.int32())
    return JsonColumns([pc.cast(events.take(kept), pa.string())], bad)


def arrow_type(kind: EventType) -> pa.DataType:
    match kind:
        case ScalarType():
            return _ARROW_TYPES[kind.name]
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case ArrayType():
            return pa.list_(arrow_type(kind.element))
        case MapType():
            return pa.map_(pa.string(), arrow_type(kind.value))
        case StructType():
            return pa.struct([_arrow_field(field) for field in kind.fields])


def _arrow_field(field: Field) -> pa.Field:
    return pa.field(field.name, arrow_type(field.type))


def _has_decimals(kind: EventType) -> bool:
    """Whether numbers must keep their digits."""
    match kind:
        case ScalarType():
            return False
        case DecimalType():
            return True
        case ArrayType():
            return _has_decimals(kind.element)
        case MapType():
            return _has_decimals(kind.value)
        case StructType():
            return any(_has_decimals(field.type) for field in kind.fields)


class _Builder:
    """Makes columns, and notes the first reason why a record is bad."""

    def __init__(self, bad: BadRecords) -> None:
        self._bad = bad

    def column(self, kind: EventType, values: list[Any], records: Sequence[int], path: str) -> pa.Array:
        """The column of values that `json.loads` returned; `records` has the number of the record of each.

        A value that does not fit is null, and its record is bad.
        """
        match kind:
            case ScalarType() | DecimalType():
                return self._scalars(kind, values, records, path)
            case ArrayType():
                return self._arrays(kind, values, records, path)
            case MapType():
                return self._maps(kind, values, records, path)
            case StructType():
                return self._structs(kind, values, records, path)

    def _scalars(
        self, kind: ScalarType | DecimalType, values: list[Any], records: Sequence[int], path: str
    ) -> pa.Array:
        wanted = arrow_type(kind)
        as_they_are = _AS_THEY_ARE.get(str(kind))
        if as_they_are is not None and set(map(type, values)) <= as_they_are:
            try:
                array = pa.array(values, wanted)
            except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
                pass  # A number out of range, or half of a surrogate pair; the loop finds which.
            else:
                if wanted != pa.float64() or pc.all(pc.is_finite(array)).as_py() is not False:
                    return array
        convert = converter(kind)
        converted: list[Any] = []
        for record, value in zip(records, values, strict=True):
            try:
                converted.append(None if value is None else convert(value))
            except ValueError as error:
                self._refuse(record, path, error)
                converted.append(None)
        return pa.array(converted, wanted)

    def _arrays(self, kind: ArrayType, values: list[Any], records: Sequence[int], path: str) -> pa.Array:
        items: list[Any] = []
        owners: list[int] = []
        starts: list[int | None] = []
        for record, value in zip(records, values, strict=True):
            if type(value) is not list:
                self._refuse_value(record, path, value, "an array")
                starts.append(None)
                continue
            starts.append(len(items))
            items += value
            owners.extend(repeat(record, len(value)))
        elements = self.column(kind.element, items, owners, f"{path}[]")
        return pa.ListArray.from_arrays(pa.array([*starts, len(items)], pa.int32()), elements)

    def _maps(self, kind: MapType, values: list[Any], records: Sequence[int], path: str) -> pa.Array:
        keys: list[str] = []
        items: list[Any] = []
        owners: list[int] = []
        starts: list[int | None] = []
        for record, value in zip(records, values, strict=True):
            if type(value) is not dict:
                self._refuse_value(record, path, value, "an object")
                starts.append(None)
                continue
            starts.append(len(items))
            keys += value.keys()
            items += value.values()
            owners.extend(repeat(record, len(value)))
        names = self._scalars(ScalarType("string"), keys, owners, f"{path}.key")
        if names.null_count:  # Arrow wants keys; the record is bad, so it does not matter which.
            names = pc.fill_null(names, "")
        item_values = self.column(kind.value, items, owners, f"{path}.value")
        return pa.MapArray.from_arrays(pa.array([*starts, len(items)], pa.int32()), names, item_values)

    def _structs(self, kind: StructType, values: list[Any], records: Sequence[int], path: str) -> pa.Array:
        objects: list[dict[str, Any]] = []
        nulls: list[bool] = []
        for record, value in zip(records, values, strict=True):
            is_object = type(value) is dict
            if not is_object:
                self._refuse_value(record, path, value, "an object")
            objects.append(value if is_object else {})
            nulls.append(not is_object)
        children = [
            self.column(field.type, [each.get(field.name) for each in objects], records, f"{path}.{field.name}")
            for field in kind.fields
        ]
        fields = [_arrow_field(field) for field in kind.fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array(nulls, pa.bool_()))

    def _refuse_value(self, record: int, path: str, value: Any, expected: str) -> None:
        """Null is allowed everywhere."""
        if value is not None:
            self._refuse(record, path, wrong_kind(value, expected))

    def _refuse(self, record: int, path: str, error: ValueError) -> None:
        self._bad.setdefault(record, f"field {path!r}: {error}")
