"""The table of errors: which reply a segment store sends for an error, and which error the reply is to its client.

Failed reads and set-ups bypass the table: a read that fails gets the reply of the last row for any error, and a set-up
gets WrongHost, since readers and writers then look up the owner and start again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headrace.model.errors import (
    SEGMENT_QUARANTINED,
    SOURCE_INCOMPLETE,
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    FencedError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    TruncatedError,
    UnauthorizedError,
    UnavailableError,
    segment_quarantined,
    source_incomplete,
)
from headrace.wire.append import ConditionalCheckFailed
from headrace.wire.fields import I32, I64, SegmentName, Text, Uuid, WireCommand, command
from headrace.wire.segments import SegmentAttributeUpdated
from headrace.wire.tables import TableKeyBadVersion, TableKeyDoesNotExist, TableSegmentNotEmpty

# Replies to failed requests.
#
# `server_stack_trace` is a field of the protocol. Headrace leaves it empty, except for one word in InvalidEventNumber.

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
class WrongHost(WireCommand, frozen=True):
    """This store does not own the segment's container. The client must ask the controller for the owner."""

    request_id: I64
    segment: SegmentName
    correct_host: Text = ""
    server_stack_trace: Text = ""


@command(51, optional_from="server_stack_trace")
class SegmentIsSealed(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(52, optional_from="server_stack_trace")
class SegmentAlreadyExists(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""


@command(53, optional_from="server_stack_trace")
class NoSuchSegment(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(55, optional_from="server_stack_trace")
class InvalidEventNumber(WireCommand, frozen=True):
    """`server_stack_trace` is WRITER_FORGOTTEN if the store no longer has the writer's last event number."""

    writer_id: Uuid
    request_id: I64
    server_stack_trace: Text = ""
    event_number: I64 = -1


@command(56, optional_from="server_stack_trace")
class SegmentIsTruncated(WireCommand, frozen=True):
    """`start_offset` is the offset of the first byte that was not truncated."""

    request_id: I64
    segment: SegmentName
    start_offset: I64
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(57, optional_from="server_stack_trace")
class OperationUnsupported(WireCommand, frozen=True):
    request_id: I64
    operation_name: Text
    server_stack_trace: Text = ""


@command(60, optional_from="server_stack_trace")
class AuthTokenCheckFailed(WireCommand, frozen=True):
    request_id: I64
    server_stack_trace: Text = ""
    error_code: I32 = ERROR_CODE_UNSPECIFIED


@command(61)
class ErrorMessage(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    message: Text
    error_code: I32 = ERROR_CODE_UNSPECIFIED


class Refused(msgspec.Struct, frozen=True):
    """A request that the store refuses, as far as error replies repeat it. Fields that it lacks keep their defaults."""

    request_id: int
    segment: str
    truncation_offset: int = -1
    writer_id: int | None = None
    """Only appends have one."""
    event_number: int = -1


Write = Callable[[HeadraceError, Refused], WireCommand]
Read = Callable[[Any], HeadraceError | None]


class ErrorRow(msgspec.Struct, frozen=True):
    """One reply. `errors` and `code` select the errors for which the store sends it."""

    reply: type[WireCommand]
    read: Read | None
    """Makes the client's error; None if another row of the same reply applies."""
    errors: tuple[type[HeadraceError], ...] = ()
    write: Write | None = None
    """Makes the reply; None if no error leads to it."""
    code: str | None = None
    """The specific code of the store's error; None: any."""
    for_appends: bool | None = None
    """Whether the store sends it for appends or for other requests; None: for both."""

    def fits(self, error: HeadraceError, refused: Refused) -> bool:
        """Whether the store reports the error of this request with this row."""
        return (
            isinstance(error, self.errors)
            and self.code in (None, error.specific_code)
            and self.for_appends in (None, refused.writer_id is not None)
        )


def reply_of_error(error: HeadraceError, refused: Refused) -> WireCommand:
    """Return the reply with which the store reports an error."""
    return next(row.write(error, refused) for row in ERROR_TABLE if row.write and row.fits(error, refused))


def error_of_reply(reply: WireCommand) -> HeadraceError:
    """Return the error that a reply reports; CorruptError for a reply that does not report one."""
    for row in ERROR_TABLE:
        if row.reply is type(reply) and row.read is not None and (error := row.read(reply)) is not None:
            return error
    return CorruptError(f"the segment store answered with an unexpected {type(reply).__name__}")


def temporary_error(reply: WireCommand) -> UnavailableError | None:
    """Return the error of a reply after which the request must be repeated; None for all other replies.

    The container has moved, or is not ready yet.
    """
    if type(reply) not in _TEMPORARY:
        return None
    error = error_of_reply(reply)
    return error if isinstance(error, UnavailableError) else None


def failure_reply(error: HeadraceError, refused: Refused) -> ErrorMessage:
    """Return the reply for an error without a reply of its own. The client repeats the request."""
    return ErrorMessage(refused.request_id, refused.segment, error.message)


_TEMPORARY: Final = (WrongHost, ErrorMessage)


def _read_wrong_host(reply: WrongHost) -> HeadraceError:
    return UnavailableError(
        f"the container of segment {reply.segment} is not on this store; ask for the endpoint again",
        details={"segment": reply.segment},
        code="wrong_host",
    )


def _write_no_such_segment(error: HeadraceError, refused: Refused) -> WireCommand:
    # A request on several segments, as a merge, names the one that is missing.
    return NoSuchSegment(refused.request_id, error.details.get("segment", refused.segment))


def _read_no_such_segment(reply: NoSuchSegment) -> HeadraceError:
    return NotFoundError(f"there is no segment {reply.segment}", details={"segment": reply.segment})


def _write_sealed(_error: HeadraceError, refused: Refused) -> WireCommand:
    return SegmentIsSealed(refused.request_id, refused.segment, "", refused.event_number)


def _read_sealed(reply: SegmentIsSealed) -> HeadraceError:
    return SealedError(
        f"segment {reply.segment} is sealed; ask for its successors",
        details={"segment": reply.segment, "offset": reply.offset},
    )


def _read_already_exists(reply: SegmentAlreadyExists) -> HeadraceError:
    return AlreadyExistsError(f"segment {reply.segment} exists already", details={"segment": reply.segment})


def _write_truncated(_error: HeadraceError, refused: Refused) -> WireCommand:
    # The protocol has no reply for a truncation after the end; it uses this one, with the requested offset.
    offset = refused.truncation_offset
    return SegmentIsTruncated(refused.request_id, refused.segment, offset, "", offset)


def _write_table_offset(error: HeadraceError, refused: Refused) -> WireCommand:
    return SegmentIsTruncated(refused.request_id, refused.segment, error.details["length"])


def _read_truncated(reply: SegmentIsTruncated) -> HeadraceError:
    return TruncatedError(
        f"segment {reply.segment} begins at offset {reply.start_offset} now; what lay before is gone",
        details={"segment": reply.segment, "start_offset": reply.start_offset, "offset": reply.offset},
    )


def _write_invalid_event_number(error: HeadraceError, refused: Refused) -> WireCommand:
    reason = WRITER_FORGOTTEN if error.specific_code == WRITER_FORGOTTEN else ""
    return InvalidEventNumber(refused.writer_id or 0, refused.request_id, reason, refused.event_number)


def _read_invalid_event_number(reply: InvalidEventNumber) -> HeadraceError:
    if reply.server_stack_trace == WRITER_FORGOTTEN:
        return IllegalStateError(
            "the segment store has forgotten this writer, which was away for too long: whether its events in flight "
            "are stored is unknown; read the stream to learn it, and make a new writer",
            details={"event_number": reply.event_number},
            code=WRITER_FORGOTTEN,
        )
    return ConflictError(
        "another connection took the writer over; set it up again",
        details={"event_number": reply.event_number},
    )


def _write_check_failed(_error: HeadraceError, refused: Refused) -> WireCommand:
    return ConditionalCheckFailed(refused.writer_id or 0, refused.event_number, refused.request_id)


def _read_check_failed(reply: ConditionalCheckFailed) -> HeadraceError:
    return ConflictError(
        "the segment does not end at the expected offset", details={"event_number": reply.event_number}, code="offset"
    )


def _read_attribute_not_updated(reply: SegmentAttributeUpdated) -> HeadraceError | None:
    if reply.success:
        return None
    return ConflictError("an attribute does not have the expected value", code="attribute")


def _read_key_missing(reply: TableKeyDoesNotExist) -> HeadraceError:
    return ConflictError(f"a key of table {reply.segment} does not exist", code="table_key_missing")


def _read_key_version(reply: TableKeyBadVersion) -> HeadraceError:
    return ConflictError(f"a key of table {reply.segment} has another version", code="table_key_version")


def _read_not_empty(reply: TableSegmentNotEmpty) -> HeadraceError:
    return IllegalStateError(f"table {reply.segment} is not empty", code="table_not_empty")


def _write_source_incomplete(error: HeadraceError, refused: Refused) -> WireCommand:
    return ErrorMessage(refused.request_id, error.details["segment"], error.message, ERROR_CODE_SOURCE_INCOMPLETE)


def _read_source_incomplete(reply: ErrorMessage) -> HeadraceError | None:
    return source_incomplete(reply.segment) if reply.error_code == ERROR_CODE_SOURCE_INCOMPLETE else None


def _write_quarantined(error: HeadraceError, refused: Refused) -> WireCommand:
    return ErrorMessage(refused.request_id, error.details["segment"], error.message, ERROR_CODE_SEGMENT_QUARANTINED)


def _read_quarantined(reply: ErrorMessage) -> HeadraceError | None:
    return segment_quarantined(reply.segment) if reply.error_code == ERROR_CODE_SEGMENT_QUARANTINED else None


def _write_illegal_argument(error: HeadraceError, refused: Refused) -> WireCommand:
    return ErrorMessage(refused.request_id, refused.segment, error.message, ERROR_CODE_ILLEGAL_ARGUMENT)


def _read_illegal_argument(reply: ErrorMessage) -> HeadraceError | None:
    if reply.error_code != ERROR_CODE_ILLEGAL_ARGUMENT:
        return None
    return InvalidRequestError(f"segment {reply.segment}: {reply.message}", details={"segment": reply.segment})


def _read_failure(reply: ErrorMessage) -> HeadraceError:
    return UnavailableError(f"segment {reply.segment}: {reply.message}", details={"segment": reply.segment})


def _read_unsupported(reply: OperationUnsupported) -> HeadraceError:
    return InvalidRequestError(f"the segment store does not support {reply.operation_name}", code="unsupported")


def _write_token_expired(_error: HeadraceError, refused: Refused) -> WireCommand:
    return AuthTokenCheckFailed(refused.request_id, "", TOKEN_EXPIRED)


def _write_token_invalid(_error: HeadraceError, refused: Refused) -> WireCommand:
    return AuthTokenCheckFailed(refused.request_id, "", TOKEN_CHECK_FAILED)


def _read_token_expired(reply: AuthTokenCheckFailed) -> HeadraceError | None:
    if reply.error_code != TOKEN_EXPIRED:
        return None
    return UnauthorizedError("the delegation token has expired: fetch another one", code="token_expired")


def _read_token_invalid(_reply: AuthTokenCheckFailed) -> HeadraceError:
    return UnauthorizedError("the segment store refused the delegation token", code="token_invalid")


ERROR_TABLE: Final = (
    ErrorRow(
        WrongHost,
        _read_wrong_host,
        (FencedError, UnavailableError),
        lambda _, refused: WrongHost(refused.request_id, refused.segment),
    ),
    ErrorRow(NoSuchSegment, _read_no_such_segment, (NotFoundError,), _write_no_such_segment),
    ErrorRow(SegmentIsSealed, _read_sealed, (SealedError,), _write_sealed),
    ErrorRow(
        SegmentAlreadyExists,
        _read_already_exists,
        (AlreadyExistsError,),
        lambda _, refused: SegmentAlreadyExists(refused.request_id, refused.segment),
    ),
    ErrorRow(SegmentIsTruncated, _read_truncated, (TruncatedError,), _write_truncated),
    ErrorRow(SegmentIsTruncated, None, (ConflictError,), _write_table_offset, code="table_offset"),
    ErrorRow(
        ConditionalCheckFailed,
        _read_check_failed,
        (ConflictError,),
        _write_check_failed,
        code="offset",
        for_appends=True,
    ),
    ErrorRow(
        InvalidEventNumber, _read_invalid_event_number, (ConflictError,), _write_invalid_event_number, for_appends=True
    ),
    ErrorRow(
        SegmentAttributeUpdated,
        _read_attribute_not_updated,
        (ConflictError,),
        lambda _, refused: SegmentAttributeUpdated(refused.request_id, False),
        code="attribute",
    ),
    ErrorRow(
        TableKeyDoesNotExist,
        _read_key_missing,
        (ConflictError,),
        lambda _, refused: TableKeyDoesNotExist(refused.request_id, refused.segment),
        code="table_key_missing",
    ),
    ErrorRow(
        TableKeyBadVersion,
        _read_key_version,
        (ConflictError,),
        lambda _, refused: TableKeyBadVersion(refused.request_id, refused.segment),
        code="table_key_version",
    ),
    ErrorRow(
        TableSegmentNotEmpty,
        _read_not_empty,
        (IllegalStateError,),
        lambda _, refused: TableSegmentNotEmpty(refused.request_id, refused.segment),
        code="table_not_empty",
    ),
    ErrorRow(
        ErrorMessage, _read_source_incomplete, (IllegalStateError,), _write_source_incomplete, code=SOURCE_INCOMPLETE
    ),
    ErrorRow(ErrorMessage, _read_quarantined, (IllegalStateError,), _write_quarantined, code=SEGMENT_QUARANTINED),
    ErrorRow(ErrorMessage, _read_illegal_argument, (InvalidRequestError,), _write_illegal_argument, for_appends=False),
    ErrorRow(
        AuthTokenCheckFailed,
        _read_token_expired,
        (UnauthorizedError,),
        _write_token_expired,
        code="token_expired",
    ),
    ErrorRow(AuthTokenCheckFailed, _read_token_invalid, (UnauthorizedError,), _write_token_invalid),
    ErrorRow(ErrorMessage, _read_failure, (HeadraceError,), failure_reply),
    ErrorRow(OperationUnsupported, _read_unsupported),
)
"""The first row that fits an error, or whose reply is read as an error, applies."""
