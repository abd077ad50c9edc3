"""Commands with which a writer appends, and their replies.

`writer_id` is an unsigned 128-bit number. Data of appends is a concatenation of framed events (see codec/events.py),
except in `ConditionalAppend`, which carries one event that the server stores with its header.
"""

from __future__ import annotations

import struct

from headrace.wire.fields import I32, I64, Data, Event, Rest, SegmentName, Text, Uuid, WireCommand, command

_DATA_APPENDED_FRAME = struct.Struct(">iiQQqqqq")
_UINT64_MASK = (1 << 64) - 1

NO_EVENT_NUMBER = -(1 << 63)
"""`AppendSetup.last_event_number` of a writer that never wrote to the segment."""


@command(1)
class SetupAppend(WireCommand, frozen=True):
    request_id: I64
    writer_id: Uuid
    segment: SegmentName
    delegation_token: Text = ""


@command(2)
class AppendSetup(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    writer_id: Uuid
    last_event_number: I64


@command(3)
class AppendBlock(WireCommand, frozen=True):
    """The first part of a block that is sent while it is still being filled; `AppendBlockEnd` completes it."""

    writer_id: Uuid
    data: Rest


@command(4, optional_from="request_id")
class AppendBlockEnd(WireCommand, frozen=True):
    """One atomic append of `num_events` events up to number `last_event_number`."""

    writer_id: Uuid
    size_of_whole_events: I32
    data: Data
    num_events: I32
    last_event_number: I64
    request_id: I64 = -1


@command(5, optional_from="request_id")
class ConditionalAppend(WireCommand, frozen=True):
    """Appends one event if the segment's length is `expected_offset`; `data` is the event without its header."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Event
    request_id: I64 = -1


@command(7, optional_from="previous_event_number")
class DataAppended(WireCommand, frozen=True):
    """Acknowledges the writer's appends after `previous_event_number`, up to and including `event_number`."""

    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = -1
    request_id: I64 = -1
    current_segment_write_offset: I64 = -1


def encode_data_appended(
    writer_id: int, event_number: int, previous_event_number: int, request_id: int, current_segment_write_offset: int
) -> bytes:
    """Encode the frame of a `DataAppended` in one step, because a server may send one for every append."""
    high, low = writer_id >> 64, writer_id & _UINT64_MASK
    return _DATA_APPENDED_FRAME.pack(
        DataAppended.TYPE,
        _DATA_APPENDED_FRAME.size - 8,  # without type and length
        high,
        low,
        event_number,
        previous_event_number,
        request_id,
        current_segment_write_offset,
    )


@command(8, optional_from="request_id")
class ConditionalCheckFailed(WireCommand, frozen=True):
    writer_id: Uuid
    event_number: I64
    request_id: I64 = -1


@command(89)
class ConditionalBlockEnd(WireCommand, frozen=True):
    """Appends `data` as it is if the segment's length is `expected_offset`."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Data
    request_id: I64


@command(-1)
class Padding(WireCommand, frozen=True):
    """Fills the unused end of an `AppendBlock`."""

    data: Rest


@command(-2)
class PartialEvent(WireCommand, frozen=True):
    """The start of an event at the end of an `AppendBlock`. The rest of the event is in `AppendBlockEnd`."""

    data: Rest
