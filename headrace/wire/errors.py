"""Replies to failed requests.

`server_stack_trace` is a field of the protocol. Headrace leaves it empty, except for one word in InvalidEventNumber.
"""

from __future__ import annotations

from headrace.wire.commands import WireCommand, command
from headrace.wire.fields import I32, I64, SegmentName, Text, Uuid

ERROR_CODE_UNSPECIFIED = -1
ERROR_CODE_ILLEGAL_ARGUMENT = 0
ERROR_CODE_SOURCE_INCOMPLETE = 1
"""Headrace's own code, with the source as `segment`. Other clients treat it as ERROR_CODE_UNSPECIFIED."""

ERROR_CODE_SEGMENT_QUARANTINED = 2
"""Headrace's own code, with the quarantined segment. Other clients treat it as ERROR_CODE_UNSPECIFIED."""

TOKEN_CHECK_FAILED = 0
TOKEN_EXPIRED = 1
WRITER_FORGOTTEN = "writer_forgotten"


@command(50, optional_from="server_stack_trace")
class WrongHost(WireCommand):
    """This store does not own the segment's container. The client must ask the controller for the owner."""

    request_id: I64
    segment: SegmentName
    correct_host: Text = ""
    server_stack_trace: Text = ""


@command(51, optional_from="server_stack_trace")
class SegmentIsSealed(WireCommand):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(52, optional_from="server_stack_trace")
class SegmentAlreadyExists(WireCommand):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""


@command(53, optional_from="server_stack_trace")
class NoSuchSegment(WireCommand):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(55, optional_from="server_stack_trace")
class InvalidEventNumber(WireCommand):
    """`server_stack_trace` is WRITER_FORGOTTEN if the store no longer has the writer's last event number."""

    writer_id: Uuid
    request_id: I64
    server_stack_trace: Text = ""
    event_number: I64 = -1


@command(56, optional_from="server_stack_trace")
class SegmentIsTruncated(WireCommand):
    """`start_offset` is the offset of the first byte that was not truncated."""

    request_id: I64
    segment: SegmentName
    start_offset: I64
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(57, optional_from="server_stack_trace")
class OperationUnsupported(WireCommand):
    request_id: I64
    operation_name: Text
    server_stack_trace: Text = ""


@command(60, optional_from="server_stack_trace")
class AuthTokenCheckFailed(WireCommand):
    request_id: I64
    server_stack_trace: Text = ""
    error_code: I32 = ERROR_CODE_UNSPECIFIED


@command(61)
class ErrorMessage(WireCommand):
    request_id: I64
    segment: SegmentName
    message: Text
    error_code: I32 = ERROR_CODE_UNSPECIFIED
