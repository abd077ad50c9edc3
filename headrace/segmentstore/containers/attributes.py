"""Attribute ids with a meaning for the store. Writers and clients use all other ids.

A core id is a UUID whose upper half is the smallest signed 64-bit number; the lower half counts.
"""

from __future__ import annotations

from typing import Final

_CORE_HALF: Final = 1 << 127

CREATION_TIME: Final = _CORE_HALF | 0
EVENT_COUNT: Final = _CORE_HALF | 1
SCALE_POLICY_TYPE: Final = _CORE_HALF | 2
SCALE_POLICY_RATE: Final = _CORE_HALF | 3
ROLLOVER_SIZE: Final = _CORE_HALF | 4
SEGMENT_TYPE: Final = _CORE_HALF | 9
TABLE_KEY_LENGTH: Final = _CORE_HALF | 32
"""The length of all keys of a table; 0 if keys may have any length."""

TABLE_BATCHES: Final = _CORE_HALF | 33
"""Counts the appends to a table's segment. It is used as their writer id, since they have no writer."""

TABLE_SEGMENT: Final = 1
"""Value of SEGMENT_TYPE; a segment without that attribute is a plain one."""

NO_VALUE: Final = -(1 << 63)
"""Means "not set" in conditions and in replies."""

VALUE_MAX: Final = (1 << 63) - 1

ATTRIBUTES_PER_SEGMENT_MAX: Final = 100_000
"""Each writer has one until it expires (`writer_expiry`). At this limit the store throttles new writers."""

CLIENT_ATTRIBUTES_MAX: Final = 256
"""Attributes of a segment that clients set by request. They never expire, and do not count as writers. Pravega's
clients set one in a revisioned stream."""

_SETTABLE_CORE: Final = frozenset({CREATION_TIME, EVENT_COUNT, SCALE_POLICY_TYPE, SCALE_POLICY_RATE, ROLLOVER_SIZE})


def is_settable(attribute_id: int) -> bool:
    """Whether clients may set the attribute, those with the rights for attributes of the store included."""
    return attribute_id in _SETTABLE_CORE or not is_core(attribute_id)


def is_core(attribute_id: int) -> bool:
    """Whether the id is reserved for the store, so that it is not the id of a writer."""
    return attribute_id >> 64 == _CORE_HALF >> 64
