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

NO_VALUE: Final = -(1 << 63)
"""Stands for "not set", in conditions and in answers."""

VALUE_MAX: Final = (1 << 63) - 1

ATTRIBUTES_PER_SEGMENT_MAX: Final = 100_000
"""Each writer that ever wrote to a segment leaves one; a new writer beyond this is refused."""


def is_core(attribute_id: int) -> bool:
    """Whether the id is one of the store's own kind: no writer has it."""
    return attribute_id >> 64 == _CORE_HALF >> 64
