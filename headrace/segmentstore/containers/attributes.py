"""Attribute ids that the store itself gives meaning to. Every other id is a writer's or a client's own.

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
"""Of a table whose keys all have one length; 0 if they may have any."""

TABLE_BATCHES: Final = _CORE_HALF | 33
"""Counts the appends to a table's segment, which have no writer: it stands in a writer's place."""

TABLE_SEGMENT: Final = 1
"""Value of SEGMENT_TYPE; a segment without that attribute is a plain one."""

NO_VALUE: Final = -(1 << 63)
"""Stands for "not set", in conditions and in answers."""

VALUE_MAX: Final = (1 << 63) - 1

ATTRIBUTES_PER_SEGMENT_MAX: Final = 100_000
"""Each writer of a segment leaves one, until it expires (`writer_expiry`); a new one beyond this is refused for now."""


def is_for_tables(attribute_id: int) -> bool:
    """Whether the attribute says how a segment's bytes are to be read: no client may set it."""
    return attribute_id in (SEGMENT_TYPE, TABLE_KEY_LENGTH, TABLE_BATCHES)


def is_core(attribute_id: int) -> bool:
    """Whether the id is one of the store's own kind: no writer has it."""
    return attribute_id >> 64 == _CORE_HALF >> 64
