"""Checked access to the fields of a stored record: each has its type, and numbers are never negative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from headrace.model.errors import CorruptError

_Kind = TypeVar("_Kind", int, str, bool)


def record_field(body: Mapping[str, Any], name: str, kind: type[_Kind]) -> _Kind:
    """The field `name`. Raises CorruptError if the record lacks it, or if it has another type or is negative."""
    value = body.get(name)
    if type(value) is not kind or (isinstance(value, int) and value < 0):  # not isinstance: a bool is an int in Python
        raise CorruptError(f"a record has {value!r} as {name}, expected {kind.__name__}")
    return value
