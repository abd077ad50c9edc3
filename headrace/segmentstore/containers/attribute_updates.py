"""Conditional updates of a segment's attributes, as the wire protocol offers them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from headrace.model.errors import ConflictError, InvalidRequestError, ThrottledError
from headrace.segmentstore.containers.attributes import ATTRIBUTES_PER_SEGMENT_MAX, NO_VALUE, is_for_tables
from headrace.segmentstore.containers.segment import Segment


class UpdateKind(IntEnum):
    """The numbers are those of the wire."""

    NONE = 0
    REPLACE = 1
    REPLACE_IF_GREATER = 2
    ACCUMULATE = 3
    REPLACE_IF_EQUALS = 4


@dataclass(frozen=True, slots=True)
class AttributeUpdate:
    """A change of one attribute. Only REPLACE_IF_EQUALS uses `expected`, where NO_VALUE means "not set"."""

    key: int
    kind: int
    value: int
    expected: int = NO_VALUE


def updated_attributes(segment: Segment, updates: Iterable[AttributeUpdate]) -> tuple[tuple[int, int], ...]:
    """Compute the new values of the updated attributes; the segment does not change.

    Raises:
        ConflictError: a condition does not hold (code "attribute").
        InvalidRequestError: the kind of an update is unknown, or clients may not set the attribute.
        ThrottledError: the segment would have too many attributes.
    """
    values: dict[int, int] = {}
    for update in updates:
        if is_for_tables(update.key):
            raise InvalidRequestError(f"attribute {update.key:032x} of segment {segment.name} cannot be changed")
        current = values.get(update.key, segment.attribute(update.key))
        new = _updated(update, current)
        if new is not None:
            values[update.key] = new
    if (
        len(segment.accepted.attributes) + len(values) > ATTRIBUTES_PER_SEGMENT_MAX
        and values.keys() - segment.accepted.attributes
    ):
        raise ThrottledError(f"segment {segment.name} has {ATTRIBUTES_PER_SEGMENT_MAX} attributes, which is the limit")
    return tuple(values.items())


def _updated(update: AttributeUpdate, current: int) -> int | None:
    match update.kind:
        case UpdateKind.NONE:
            return None
        case UpdateKind.REPLACE:
            return update.value
        case UpdateKind.REPLACE_IF_GREATER:
            if current != NO_VALUE and update.value <= current:
                raise _mismatch(update, current)
            return update.value
        case UpdateKind.ACCUMULATE:
            return _as_int64(update.value + (0 if current == NO_VALUE else current))
        case UpdateKind.REPLACE_IF_EQUALS:
            if current != update.expected:
                raise _mismatch(update, current)
            return update.value
        case _:
            raise InvalidRequestError(f"attribute updates of kind {update.kind} are unknown")


def _mismatch(update: AttributeUpdate, current: int) -> ConflictError:
    return ConflictError(
        f"attribute {update.key:032x} has the value {current}, which the condition does not allow", code="attribute"
    )


def _as_int64(value: int) -> int:
    """Wraps as 64-bit arithmetic does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
