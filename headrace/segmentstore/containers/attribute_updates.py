"""Conditional updates of a segment's attributes, as the wire protocol offers them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from headrace.model.errors import ConflictError, InvalidRequestError, ThrottledError
from headrace.model.limits import WRITER_KEPT_S_MIN
from headrace.model.segment_attributes import (
    ATTRIBUTES_PER_SEGMENT_MAX,
    CLIENT_ATTRIBUTES_MAX,
    NO_VALUE,
    is_core,
    is_settable,
)
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


def updated_attributes(
    segment: Segment, updates: Iterable[AttributeUpdate], *, sets_own: bool = False
) -> tuple[tuple[int, int], ...]:
    """Compute the new values of the updated attributes; the segment does not change.

    With `sets_own`, the client sets attributes of its own, as opposed to numbers of writers that come with a merge.

    Raises:
        ConflictError: a condition does not hold (code "attribute").
        InvalidRequestError: the kind of an update is unknown, or clients may not set the attribute; or the segment
            would have too many attributes that clients have set (code "too_many_attributes").
        ThrottledError: the segment would have too many writers.
    """
    values: dict[int, int] = {}
    for update in updates:
        if not is_settable(update.key):
            raise InvalidRequestError(f"attribute {update.key:032x} of segment {segment.name} cannot be changed")
        current = values.get(update.key, segment.attribute(update.key))
        new = _updated(update, current)
        if new is not None:
            values[update.key] = new
    check_attribute_count(segment, values, sets_own=sets_own)
    return tuple(values.items())


def check_attribute_count(segment: Segment, keys: Iterable[int], *, sets_own: bool = False) -> None:
    """Raise as `updated_attributes` if the segment would have too many attributes with these."""
    accepted = segment.accepted
    own = accepted.client_attributes
    if sets_own:
        count = len(own) + len({key for key in keys if not is_core(key) and key not in own})
        if count > max(CLIENT_ATTRIBUTES_MAX, len(own)):
            raise InvalidRequestError(
                f"segment {segment.name} has {len(own)} attributes that clients have set, and at most "
                f"{CLIENT_ATTRIBUTES_MAX} are allowed: change those that it has",
                details={"attributes": len(own), "attributes_max": CLIENT_ATTRIBUTES_MAX},
                code="too_many_attributes",
            )
        return
    writers = len(accepted.attributes) - len(own)
    new = sum(key not in accepted.attributes for key in keys)
    if new and writers + new > ATTRIBUTES_PER_SEGMENT_MAX:
        raise ThrottledError(
            f"segment {segment.name} has {writers} writers, and at most {ATTRIBUTES_PER_SEGMENT_MAX} are allowed; "
            f"disconnected writers expire after {WRITER_KEPT_S_MIN:g} s: use each writer longer, or scale the stream"
        )


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
