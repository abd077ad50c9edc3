"""Commands on segments: lifecycle, policy, attributes, merging, reads and questions; and their replies.

Offsets and lengths are in bytes. Ordering numbers order the bytes of different segments of a store by time (Pravega's
PDP 28): microseconds since the Unix epoch by the store's clock, never decreasing, 0 where the time is unknown. They and
the tokens of reads are trailing fields that older peers neither send nor miss.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from headrace.model.segment_attributes import NO_VALUE
from headrace.wire.fields import (
    I8,
    I32,
    I64,
    TEXT_BYTES_MIN,
    UUID_FIELD,
    Bool,
    Data,
    Fixed,
    FixedRun,
    ListStep,
    SegmentName,
    Sink,
    Text,
    Token,
    Uuid,
    WireCommand,
    command,
    read_name,
    write_name,
)

# Changes of attributes and merged sources within a frame, alone and in lists.


class AttributeUpdate(msgspec.Struct, frozen=True):
    """One attribute change.

    `update_type`: 0 none, 1 replace, 2 replace if greater, 3 accumulate, 4 replace if equal to `old_value`.
    """

    attribute_id: int
    update_type: int
    new_value: int
    old_value: int


class MergedSource(msgspec.Struct, frozen=True):
    """A merged source segment and the length of the target after it."""

    source: str
    new_target_write_offset: int


_INT64_RUN = FixedRun([Fixed("q")])
_ATTRIBUTE_UPDATE_RUN = FixedRun([UUID_FIELD, Fixed("b"), Fixed("q"), Fixed("q")])


def _read_attribute_update(payload: memoryview, position: int) -> tuple[AttributeUpdate, int]:
    values: list[Any] = []
    position = _ATTRIBUTE_UPDATE_RUN.read(payload, position, values)
    return AttributeUpdate(*values), position


def _write_attribute_update(update: AttributeUpdate, sink: Sink) -> None:
    values = (update.attribute_id, update.update_type, update.new_value, update.old_value)
    _ATTRIBUTE_UPDATE_RUN.write(values, sink)


def _read_merged_source(payload: memoryview, position: int) -> tuple[MergedSource, int]:
    source, position = read_name(payload, position)
    values: list[Any] = []
    position = _INT64_RUN.read(payload, position, values)
    return MergedSource(source, values[0]), position


def _write_merged_source(merged: MergedSource, sink: Sink) -> None:
    write_name(merged.source, sink)
    _INT64_RUN.write((merged.new_target_write_offset,), sink)


MERGED_SOURCES_MAX = 1_000
"""Sources of one merge command. The store may have to look up each source that is not in memory."""

MERGE_ATTRIBUTE_UPDATES_MAX = 100
"""Attribute updates of one merge command (ours; clients send one)."""

SourceNames = Annotated[tuple[str, ...], ListStep(MERGED_SOURCES_MAX, TEXT_BYTES_MIN, read_name, write_name)]
AttributeUpdates = Annotated[
    tuple[AttributeUpdate, ...],
    ListStep(
        MERGE_ATTRIBUTE_UPDATES_MAX, _ATTRIBUTE_UPDATE_RUN.bytes_min, _read_attribute_update, _write_attribute_update
    ),
]
MergedSources = Annotated[
    tuple[MergedSource, ...],
    ListStep(MERGED_SOURCES_MAX, TEXT_BYTES_MIN + _INT64_RUN.bytes_min, _read_merged_source, _write_merged_source),
]


SCALE_TYPE_NONE = 0
SCALE_TYPE_KBYTES_PER_SEC = 1
SCALE_TYPE_EVENTS_PER_SEC = 2
NO_ATTRIBUTE_VALUE = NO_VALUE
"""The value of an attribute that is not set."""


@command(20, optional_from="rollover_size_bytes")
class CreateSegment(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    target_rate: I32
    scale_type: I8
    delegation_token: Text = ""
    rollover_size_bytes: I64 = 0


@command(21)
class SegmentCreated(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName


@command(40)
class CreateTransientSegment(WireCommand, frozen=True):
    """The server chooses the name and answers it in `SegmentCreated`."""

    request_id: I64
    writer_id: Uuid
    parent_segment: SegmentName
    delegation_token: Text = ""


@command(28)
class SealSegment(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(29)
class SegmentSealed(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName


@command(38)
class TruncateSegment(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    truncation_offset: I64
    delegation_token: Text = ""


@command(39)
class SegmentTruncated(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName


@command(30)
class DeleteSegment(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(110)
class DeleteSegmentUpTo(WireCommand, frozen=True):
    """Headrace's own: deletes the segment unless the value of the attribute is above `value_max`.

    One that does not have the attribute is deleted. The answer is `SegmentDeleted`, or `SegmentAttributeUpdated` with
    `success` false. A type of its own, since a store that does not know the condition must not delete.
    """

    request_id: I64
    segment: SegmentName
    attribute_id: Uuid
    value_max: I64
    delegation_token: Text = ""


@command(111)
class TruncateSegmentUpTo(WireCommand, frozen=True):
    """Headrace's own: truncates the segment unless the value of the attribute is above `value_max`.

    The answer is that to `TruncateSegment`, or `SegmentAttributeUpdated` with `success` false.
    """

    request_id: I64
    segment: SegmentName
    truncation_offset: I64
    attribute_id: Uuid
    value_max: I64
    delegation_token: Text = ""


@command(112)
class UpdateSegmentAttributeUpTo(WireCommand, frozen=True):
    """Headrace's own: `UpdateSegmentAttribute` unless the value of the attribute `bound_id` is above `value_max`."""

    request_id: I64
    segment: SegmentName
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    bound_id: Uuid
    value_max: I64
    delegation_token: Text = ""


@command(31)
class SegmentDeleted(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName


@command(32)
class UpdateSegmentPolicy(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    target_rate: I32
    scale_type: I8
    delegation_token: Text = ""


@command(33)
class SegmentPolicyUpdated(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName


@command(34)
class GetSegmentAttribute(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    attribute_id: Uuid
    delegation_token: Text = ""


@command(35)
class SegmentAttribute(WireCommand, frozen=True):
    request_id: I64
    value: I64


@command(36)
class UpdateSegmentAttribute(WireCommand, frozen=True):
    """Replaces the value if it is `expected_value`."""

    request_id: I64
    segment: SegmentName
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    delegation_token: Text = ""


@command(37)
class SegmentAttributeUpdated(WireCommand, frozen=True):
    request_id: I64
    success: Bool


@command(58, optional_from="attribute_updates")
class MergeSegments(WireCommand, frozen=True):
    """Appends the source as a whole to the target and removes it."""

    request_id: I64
    target: SegmentName
    source: SegmentName
    delegation_token: Text = ""
    attribute_updates: AttributeUpdates = ()


@command(59, optional_from="new_target_write_offset")
class SegmentsMerged(WireCommand, frozen=True):
    request_id: I64
    target: SegmentName
    source: SegmentName
    new_target_write_offset: I64 = -1


@command(90)
class MergeSegmentsBatch(WireCommand, frozen=True):
    request_id: I64
    target: SegmentName
    sources: SourceNames
    delegation_token: Text = ""


@command(91)
class SegmentsBatchMerged(WireCommand, frozen=True):
    request_id: I64
    target: SegmentName
    merged: MergedSources


@command(9, optional_from="request_id")
class ReadSegment(WireCommand, frozen=True):
    """The server holds the request while there is no data at `offset`.

    `token` is that of the `SegmentRead` that ended at `offset`, and only saves the server a look-up.
    """

    segment: SegmentName
    offset: I64
    suggested_length: I32
    delegation_token: Text = ""
    request_id: I64 = -1
    token: Token = b""


@command(10, optional_from="request_id")
class SegmentRead(WireCommand, frozen=True):
    """`offset` is the one asked for; no data and no end of segment means: nothing new, ask again.

    `ordering_number` is that of the first byte of `data`, or of an append now if there is none.
    """

    segment: SegmentName
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: Data
    request_id: I64 = -1
    ordering_number: I64 = 0
    token: Token = b""


@command(11)
class GetStreamSegmentInfo(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(12, optional_from="start_offset")
class StreamSegmentInfo(WireCommand, frozen=True):
    """`write_offset` is the length; `last_modified` is in milliseconds since the Unix epoch.

    `ordering_number` is what data would get if it were appended now.
    """

    request_id: I64
    segment: SegmentName
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0
    ordering_number: I64 = 0


@command(41, optional_from="ordering_number")
class LocateOffset(WireCommand, frozen=True):
    """With an `ordering_number`: asks for the first append that is at `target_offset` or behind, and not older."""

    request_id: I64
    segment: SegmentName
    target_offset: I64
    delegation_token: Text = ""
    ordering_number: I64 = 0


@command(42, optional_from="ordering_number")
class OffsetLocated(WireCommand, frozen=True):
    """The nearest append boundary that was asked for; the segment's length if there is none yet.

    `ordering_number` is that of the append at `offset`, or of an append now at the segment's length. It is 0 unless the
    request had one.
    """

    request_id: I64
    segment: SegmentName
    offset: I64
    ordering_number: I64 = 0
