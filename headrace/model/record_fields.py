"""Fields of a record that is read back: of their type and never negative, or the record is corrupt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from headrace.model.errors import CorruptError

_Kind = TypeVar("_Kind", int, str, bool)


def record_field(body: Mapping[str, Any], name: str, kind: type[_Kind]) -> _Kind:
    """Raises CorruptError: the record lacks the field, or holds something else under its name."""
    value = body.get(name)
    if type(value) is not kind or (isinstance(value, int) and value < 0):  # not isinstance: JSON's true is no number
        raise CorruptError(f"a record has {value!r} as {name}, expected {kind.__name__}")
    return value
