"""Commands that read a segment or ask about it, and their replies. Offsets and lengths are in bytes."""

from __future__ import annotations

from headrace.codec.wire_commands.commands import WireCommand, command
from headrace.codec.wire_commands.fields import I32, I64, Bool, Data, Text


@command(9, optional_from="request_id")
class ReadSegment(WireCommand):
    """Held by the server while there is nothing to read at `offset`."""

    segment: Text
    offset: I64
    suggested_length: I32
    delegation_token: Text = ""
    request_id: I64 = -1


@command(10, optional_from="request_id")
class SegmentRead(WireCommand):
    """`offset` is the one asked for; no data and no end of segment means: nothing new, ask again."""

    segment: Text
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: Data
    request_id: I64 = -1


@command(11)
class GetStreamSegmentInfo(WireCommand):
    request_id: I64
    segment: Text
    delegation_token: Text = ""


@command(12, optional_from="start_offset")
class StreamSegmentInfo(WireCommand):
    """`write_offset` is the length; `last_modified` is in milliseconds since the Unix epoch."""

    request_id: I64
    segment: Text
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0


@command(41)
class LocateOffset(WireCommand):
    request_id: I64
    segment: Text
    target_offset: I64
    delegation_token: Text = ""


@command(42)
class OffsetLocated(WireCommand):
    """The nearest append boundary at or behind the target."""

    request_id: I64
    segment: Text
    offset: I64
