"""Commands that read a segment or ask about it, and their replies. Offsets and lengths are in bytes.

Ordering numbers order the bytes of different segments of a store by time (Pravega's PDP 28): microseconds since the
Unix epoch by the store's clock, never decreasing, 0 where the time is unknown. They and the tokens are trailing
fields that older peers neither send nor miss.
"""

from __future__ import annotations

from headrace.wire.fields import I32, I64, Bool, Data, SegmentName, Text, Token, WireCommand, command


@command(9, optional_from="request_id")
class ReadSegment(WireCommand):
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
class SegmentRead(WireCommand):
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
class GetStreamSegmentInfo(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(12, optional_from="start_offset")
class StreamSegmentInfo(WireCommand):
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
class LocateOffset(WireCommand):
    """With an `ordering_number`: asks for the first append that is at `target_offset` or behind, and not older."""

    request_id: I64
    segment: SegmentName
    target_offset: I64
    delegation_token: Text = ""
    ordering_number: I64 = 0


@command(42, optional_from="ordering_number")
class OffsetLocated(WireCommand):
    """The nearest append boundary that was asked for; the segment's length if there is none yet.

    `ordering_number` is that of the append at `offset`, or of an append now at the segment's length. It is 0 unless the
    request had one.
    """

    request_id: I64
    segment: SegmentName
    offset: I64
    ordering_number: I64 = 0
