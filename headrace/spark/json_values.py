"""JSON values into the values of a schema's scalar types, one at a time: strict, so that no value changes silently.

Each function takes a value that is not null and returns what Arrow takes, or raises ValueError with a text for people.
The texts never quote the value, which may be personal data.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from math import isfinite
from typing import Any, Final

from headrace.spark.event_schemas import PRECISION_MAX, DecimalType, ScalarType

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
        found = float(value)
    except OverflowError:
        found = float("inf")
    if not isfinite(found):
        raise ValueError("the number is outside the range of double")
    return found


def _float(value: Any) -> float:
    found = _double(value)
    try:
        struct.pack("<f", found)
    except OverflowError:
        raise ValueError("the number is outside the range of float") from None
    return found


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
            found = Decimal(value).quantize(unit, context=_EXACTLY)
        except (InvalidOperation, Inexact):
            raise ValueError(f"the number does not fit {kind} without rounding") from None
        if not -limit < found < limit:  # abs() returns the digits of the default context only
            raise ValueError(f"the number does not fit {kind} without rounding")
        return found

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
