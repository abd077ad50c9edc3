"""The numbers of segment attributes, once: every fixed id, what its value means and who writes it.

An attribute is a 64-bit number that a segment has under a 128-bit id. Core ids belong to the store: their upper half is
the smallest signed 64-bit number, and the lower half counts. All other ids belong to clients. A writer's id is the id
of the attribute with its last event number. The ids are stored with the segments and never change.
"""

from __future__ import annotations

from typing import Final

_CORE_HALF: Final = 1 << 127

CREATION_TIME: Final = _CORE_HALF | 0
"""When the segment was created, in milliseconds since 1970. The store writes it at the creation."""

EVENT_COUNT: Final = _CORE_HALF | 1
"""The events of the segment, as Pravega counts them. The store adds those of each append and of each merge."""

SCALE_POLICY_TYPE: Final = _CORE_HALF | 2
"""The unit of the rate at which the segment is split. The store writes it as the controller asks."""

SCALE_POLICY_RATE: Final = _CORE_HALF | 3
"""The rate at which the segment is split. The store writes it as the controller asks."""

ROLLOVER_SIZE: Final = _CORE_HALF | 4
"""The chunk size of the stream's configuration, in bytes. The store writes it at the creation."""

SEGMENT_TYPE: Final = _CORE_HALF | 9
"""TABLE_SEGMENT for a table; a plain segment has none. The store writes it when it creates a table."""

TABLE_KEY_LENGTH: Final = _CORE_HALF | 32
"""The length of all keys of a table; 0 if keys may have any length. The store writes it when it creates a table."""

TABLE_BATCHES: Final = _CORE_HALF | 33
"""Counts the appends to a table's segment. The store uses it as their writer id, since they have no writer."""

MAY_LACK_BYTES: Final = _CORE_HALF | 34
"""1 for a segment of which acknowledged bytes may be lost; no other segment has it. The store answers it from its
state. It is never stored, and no request sets it. An older store does not know it, and answers that it is not set."""

REVISION_MARK: Final = 0x7DF9A874_246C_C9D6_9397_CDD19EAD68C5
"""The revision at which readers of a revisioned stream begin. Clients write it; the id is that of Pravega's clients. In
a mark segment the controller writes it: the offset of the newest watermark."""

MARK_INCARNATION: Final = 0x3C1D6A0F_58E2_4B7A_9D02_C46B7E91F385
"""The first segment number of the incarnation of a stream that owns the mark segment. The controller writes it."""

CONTROLLER_WRITER: Final = int.from_bytes(b"headrace-control")
"""The writer of every conditional append of the controller: one attribute for each segment, for all processes. Its
event number is the offset behind the append, which only grows, and that of a later incarnation is always larger."""

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
