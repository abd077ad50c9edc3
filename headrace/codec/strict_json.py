"""JSON as every reader understands it: in UTF-8, or it is refused, with a reason.

Stricter than RFC 8259 demands, because a reader elsewhere could understand such a text differently: no field occurs
twice in an object. NaN and Infinity are not JSON. The reasons never quote the text, which may hold personal data.

Hostile texts must not end the process. So the depth is bounded before the parser runs, which is recursive.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from itertools import accumulate
from typing import Any, Final, NoReturn

NESTING_MAX: Final = 100
"""Objects and arrays in one another. Python's own limit depends on what the process is doing."""

_BACKSLASH: Final = b"\\"
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_STEPS: Final = bytes(byte for byte in range(256) if byte not in _STEPS)
_MAY_BE_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


class RefusedJsonError(ValueError):
    """The text is not JSON as every reader understands it. The message is the reason: "it ..."."""


def text_of(event: bytes) -> str:
    """The text of an event.

    Raises:
        RefusedJsonError: it is not UTF-8. Half of a surrogate pair is not, either.
    """
    try:
        return event.decode()
    except UnicodeDecodeError as error:
        raise RefusedJsonError(not_utf8(error)) from None


def not_utf8(error: UnicodeDecodeError) -> str:
    """The reason why an event is bad that is not text."""
    return f"it is not UTF-8: {error.reason} at byte {error.start}"


def parse_json(text: str, *, exact_numbers: bool = False) -> Any:
    """The value of a text.

    With `exact_numbers`, numbers with a fraction or an exponent are `Decimal`, else float. A string may have half of a
    surrogate pair, since JSON can escape it: see `has_half_pairs`.

    Raises:
        RefusedJsonError: it is not JSON, or not as every reader understands it.
    """
    if text.count("[") + text.count("{") > NESTING_MAX and _depth(text.encode()) > NESTING_MAX:
        raise RefusedJsonError(f"it is nested more than {NESTING_MAX} deep")
    try:
        return (_EXACT if exact_numbers else _FAST)(text)
    except json.JSONDecodeError as error:
        reason = f"it is not JSON: {error.msg} at character {error.pos}" if text.strip() else "it is empty"
        raise RefusedJsonError(reason) from None
    except RefusedJsonError:
        raise
    except ValueError:  # Python limits the digits, since their conversion is quadratic.
        raise RefusedJsonError("it has an integer with too many digits") from None


def has_half_pairs(text: str, value: Any) -> bool:
    """Whether `value` has half of a surrogate pair, which is not a character. `parse_json` returned it for `text`."""
    if _MAY_BE_HALF.search(text) is None:
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _depth(text: bytes) -> int:
    """The deepest nesting. Exact up to the first byte that is not JSON, where the parser stops."""
    unescaped = text.replace(_BACKSLASH * 2, b"").replace(_BACKSLASH + b'"', b"")
    outside = b"".join(unescaped.split(b'"')[::2]).translate(None, _NO_STEPS)
    return max(accumulate(map(_STEPS.__getitem__, outside)), default=0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise RefusedJsonError("a field occurs twice in an object")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise RefusedJsonError(f"it is not JSON: {name} is not a number")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return Decimal("Infinity")


_FAST: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant).decode
_EXACT: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_decimal
).decode
