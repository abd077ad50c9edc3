"""Commands on whole segments: lifecycle, policy, attributes, merging; and their replies."""

from __future__ import annotations

from headrace.model.segment_attributes import NO_VALUE
from headrace.wire.commands import WireCommand, command
from headrace.wire.fields import I8, I32, I64, Bool, SegmentName, Text, Uuid
from headrace.wire.segment_fields import AttributeUpdates, MergedSources, SourceNames

SCALE_TYPE_NONE = 0
SCALE_TYPE_KBYTES_PER_SEC = 1
SCALE_TYPE_EVENTS_PER_SEC = 2
NO_ATTRIBUTE_VALUE = NO_VALUE
"""The value of an attribute that is not set."""


@command(20, optional_from="rollover_size_bytes")
class CreateSegment(WireCommand):
    request_id: I64
    segment: SegmentName
    target_rate: I32
    scale_type: I8
    delegation_token: Text = ""
    rollover_size_bytes: I64 = 0


@command(21)
class SegmentCreated(WireCommand):
    request_id: I64
    segment: SegmentName


@command(40)
class CreateTransientSegment(WireCommand):
    """The server chooses the name and answers it in `SegmentCreated`."""

    request_id: I64
    writer_id: Uuid
    parent_segment: SegmentName
    delegation_token: Text = ""


@command(28)
class SealSegment(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(29)
class SegmentSealed(WireCommand):
    request_id: I64
    segment: SegmentName


@command(38)
class TruncateSegment(WireCommand):
    request_id: I64
    segment: SegmentName
    truncation_offset: I64
    delegation_token: Text = ""


@command(39)
class SegmentTruncated(WireCommand):
    request_id: I64
    segment: SegmentName


@command(30)
class DeleteSegment(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(110)
class DeleteSegmentUpTo(WireCommand):
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
class TruncateSegmentUpTo(WireCommand):
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
class UpdateSegmentAttributeUpTo(WireCommand):
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
class SegmentDeleted(WireCommand):
    request_id: I64
    segment: SegmentName


@command(32)
class UpdateSegmentPolicy(WireCommand):
    request_id: I64
    segment: SegmentName
    target_rate: I32
    scale_type: I8
    delegation_token: Text = ""


@command(33)
class SegmentPolicyUpdated(WireCommand):
    request_id: I64
    segment: SegmentName


@command(34)
class GetSegmentAttribute(WireCommand):
    request_id: I64
    segment: SegmentName
    attribute_id: Uuid
    delegation_token: Text = ""


@command(35)
class SegmentAttribute(WireCommand):
    request_id: I64
    value: I64


@command(36)
class UpdateSegmentAttribute(WireCommand):
    """Replaces the value if it is `expected_value`."""

    request_id: I64
    segment: SegmentName
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    delegation_token: Text = ""


@command(37)
class SegmentAttributeUpdated(WireCommand):
    request_id: I64
    success: Bool


@command(58, optional_from="attribute_updates")
class MergeSegments(WireCommand):
    """Appends the source as a whole to the target and removes it."""

    request_id: I64
    target: SegmentName
    source: SegmentName
    delegation_token: Text = ""
    attribute_updates: AttributeUpdates = ()


@command(59, optional_from="new_target_write_offset")
class SegmentsMerged(WireCommand):
    request_id: I64
    target: SegmentName
    source: SegmentName
    new_target_write_offset: I64 = -1


@command(90)
class MergeSegmentsBatch(WireCommand):
    request_id: I64
    target: SegmentName
    sources: SourceNames
    delegation_token: Text = ""


@command(91)
class SegmentsBatchMerged(WireCommand):
    request_id: I64
    target: SegmentName
    merged: MergedSources
