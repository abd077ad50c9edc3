"""Events into JSON objects, strictly: an event is one object as `headrace.codec.strict_json` reads it, or it is bad.

Hostile events must not take the memory of the process: an object of Python takes up to 30 times the bytes of its text.
So the bytes are bounded before the parser runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.codec.strict_json import RefusedJsonError, parse_json, text_of
from headrace.model.limits import EVENT_BYTES_MAX

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
    found = parse_json(event if isinstance(event, str) else text_of(event), exact_numbers=exact_numbers)
    if type(found) is not dict:
        raise RefusedJsonError("it is not a JSON object")
    return found


def _is_short(text: str) -> bool:
    """Whether the bytes of a text are within the limit; they are counted only if it could be too long."""
    return len(text) * 4 <= RECORD_BYTES_MAX or len(text.encode()) <= RECORD_BYTES_MAX
