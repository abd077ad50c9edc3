"""Commands on table segments, and their replies. Positions and lengths are in bytes of the table's segment."""

from __future__ import annotations

from headrace.wire.commands import WireCommand, command
from headrace.wire.fields import I32, I64, Bool, Data, SegmentName, Text
from headrace.wire.table_fields import ReadKeys, TableEntries, TableKeys, Versions

NO_TABLE_OFFSET = -1
"""The value of `table_segment_offset` in an update that has no condition on the table's length."""


@command(68)
class GetTableSegmentInfo(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(69)
class TableSegmentInfo(WireCommand):
    request_id: I64
    segment: SegmentName
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@command(70, optional_from="sorted_deprecated")
class CreateTableSegment(WireCommand):
    """If `key_length` is 0, keys may have any length. Otherwise all keys have this length, and are sorted as bytes."""

    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""
    sorted_deprecated: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@command(71)
class DeleteTableSegment(WireCommand):
    request_id: I64
    segment: SegmentName
    must_be_empty: Bool
    delegation_token: Text = ""


@command(74, optional_from="table_segment_offset")
class UpdateTableEntries(WireCommand):
    """Updates all entries or none. Each version is a condition: NO_VERSION, NOT_EXISTS or the current version."""

    request_id: I64
    segment: SegmentName
    delegation_token: Text
    entries: TableEntries
    table_segment_offset: I64 = NO_TABLE_OFFSET


@command(75)
class TableEntriesUpdated(WireCommand):
    """One version per entry of the request, in its order."""

    request_id: I64
    versions: Versions


@command(76, optional_from="table_segment_offset")
class RemoveTableKeys(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    keys: TableKeys
    table_segment_offset: I64 = NO_TABLE_OFFSET


@command(77)
class TableKeysRemoved(WireCommand):
    request_id: I64
    segment: SegmentName


@command(78)
class ReadTable(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    keys: ReadKeys


@command(79)
class TableRead(WireCommand):
    """One entry per key of the request, in its order. A missing key has the version NOT_EXISTS and no value."""

    request_id: I64
    segment: SegmentName
    entries: TableEntries


@command(83, optional_from="continuation_token")
class ReadTableKeys(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    suggested_key_count: I32
    continuation_token: Data = b""
    prefix_filter: Data = b""
    from_key: Data = b""
    to_key: Data = b""


@command(84)
class TableKeysRead(WireCommand):
    request_id: I64
    segment: SegmentName
    keys: TableKeys
    continuation_token: Data


@command(85, optional_from="continuation_token")
class ReadTableEntries(WireCommand):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    suggested_entry_count: I32
    continuation_token: Data = b""
    prefix_filter: Data = b""
    from_key: Data = b""
    to_key: Data = b""


@command(86)
class TableEntriesRead(WireCommand):
    request_id: I64
    segment: SegmentName
    entries: TableEntries
    continuation_token: Data


@command(88)
class ReadTableEntriesDelta(WireCommand):
    """Requests the entries that were written at or after `from_position`."""

    request_id: I64
    segment: SegmentName
    delegation_token: Text
    from_position: I64
    suggested_entry_count: I32


@command(87)
class TableEntriesDeltaRead(WireCommand):
    """`last_position` is the position for the next request. `should_clear`: entries read before may be removed."""

    request_id: I64
    segment: SegmentName
    entries: TableEntries
    should_clear: Bool
    reached_end: Bool
    last_position: I64


@command(80, optional_from="server_stack_trace")
class TableSegmentNotEmpty(WireCommand):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""


@command(81, optional_from="server_stack_trace")
class TableKeyDoesNotExist(WireCommand):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""


@command(82, optional_from="server_stack_trace")
class TableKeyBadVersion(WireCommand):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""
