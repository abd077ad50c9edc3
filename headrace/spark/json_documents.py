"""Events into JSON objects, strictly: an event is one object in UTF-8, or it is bad, with a reason.

Stricter than RFC 8259 demands, because a reader elsewhere could understand such an event differently: no field occurs
twice in an object. NaN and Infinity are not JSON. The reasons never quote the event, which may hold personal data.

Hostile events must not end the process or take its memory. So the depth is bounded before the parser runs, which is
recursive, and the bytes are. An object of Python takes up to 30 times the bytes of its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.limits import EVENT_BYTES_MAX

RECORD_BYTES_MAX: Final = EVENT_BYTES_MAX
"""Of an event that is parsed: what a transaction accepts. Large events have more."""

NESTING_MAX: Final = 100
"""Objects and arrays in one another. Python's own limit depends on what the process is doing."""

Document = dict[str, Any]
BadRecords = dict[int, str]
"""The reason why an event is bad, by its number in the batch."""

_NOTHING: Final[Document] = {}
_BACKSLASH: Final = b"\\"


class _RefusedError(ValueError):
    """Raised in the parser's callbacks."""


def parse_documents(events: pa.BinaryArray, *, exact_numbers: bool) -> tuple[list[Document], BadRecords]:
    """The object of each event; an empty one for a bad event.

    With `exact_numbers`, numbers with a fraction or an exponent are `Decimal`, else float.
    """
    decode = (_EXACT if exact_numbers else _FAST).decode
    documents: list[Document] = []
    bad: BadRecords = {}
    for number, event in enumerate(_texts(events)):
        found = _document(event, decode)
        if isinstance(found, str):
            bad[number] = found
            documents.append(_NOTHING)
        else:
            documents.append(found)
    return documents, bad


def not_utf8(error: UnicodeDecodeError) -> str:
    """The reason why an event is bad that is not text."""
    return f"it is not UTF-8: {error.reason} at byte {error.start}"


def _texts(events: pa.BinaryArray) -> Sequence[str | bytes]:
    """All as text if all are UTF-8, which Arrow checks faster."""
    try:
        return pc.cast(events, pa.string()).to_pylist()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        return events.to_pylist()  # type: ignore[no-any-return]


def _document(event: str | bytes, decode: Callable[[str], Any]) -> Document | str:
    """The object, or the reason why there is none."""
    if len(event) > RECORD_BYTES_MAX or (isinstance(event, str) and not _is_short(event)):
        return f"it has more than {RECORD_BYTES_MAX} bytes"
    try:
        text = event if isinstance(event, str) else event.decode()
    except UnicodeDecodeError as error:
        return not_utf8(error)
    if text.count("[") + text.count("{") > NESTING_MAX and _depth(text.encode()) > NESTING_MAX:
        return f"it is nested more than {NESTING_MAX} deep"
    try:
        found = decode(text)
    except json.JSONDecodeError as error:
        return f"it is not JSON: {error.msg} at character {error.pos}" if text.strip() else "it is empty"
    except _RefusedError as error:
        return str(error)
    except ValueError:
        return "it has an integer with too many digits"  # Python limits them, since their conversion is quadratic
    if type(found) is not dict:
        return "it is not a JSON object"
    return found


def _is_short(text: str) -> bool:
    """Whether the bytes of a text are within the limit; they are counted only if it could be too long."""
    return len(text) * 4 <= RECORD_BYTES_MAX or len(text.encode()) <= RECORD_BYTES_MAX


def _depth(event: bytes) -> int:
    """The deepest nesting. Exact up to the first byte that is not JSON, where the parser stops."""
    unescaped = event.replace(_BACKSLASH * 2, b"").replace(_BACKSLASH + b'"', b"")
    data = np.frombuffer(unescaped, np.uint8)
    outside = (np.cumsum(data == ord('"'), dtype=np.int32) & 1) == 0
    opens = (data == ord("[")) | (data == ord("{"))
    closes = (data == ord("]")) | (data == ord("}"))
    steps = (opens & outside).astype(np.int8) - (closes & outside).astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def _object(pairs: list[tuple[str, Any]]) -> Document:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RefusedError("a field occurs twice in an object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedError(f"it is not JSON: {name} is not a number")


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return Decimal("Infinity")


_FAST: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)
_EXACT: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_exact)
