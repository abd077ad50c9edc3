"""What an error reply of a segment store means in our error tree: the one table for every client of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace import wire
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    TruncatedError,
    UnauthorizedError,
    UnavailableError,
    source_incomplete,
)


def error_of_reply(reply: wire.WireCommand) -> HeadraceError:
    """The error that this reply reports; CorruptError for an unexpected reply."""
    make = _ERRORS.get(type(reply))
    if make is None:
        return CorruptError(f"the segment store answered with an unexpected {type(reply).__name__}")
    return make(reply)


def _wrong_host(reply: Any) -> HeadraceError:
    return UnavailableError(
        f"the container of segment {reply.segment} is not on this store; ask for the endpoint again",
        details={"segment": reply.segment},
        code="wrong_host",
    )


def _sealed(reply: Any) -> HeadraceError:
    return SealedError(
        f"segment {reply.segment} is sealed; ask for its successors",
        details={"segment": reply.segment, "offset": reply.offset},
    )


def _already_exists(reply: Any) -> HeadraceError:
    return AlreadyExistsError(f"segment {reply.segment} exists already", details={"segment": reply.segment})


def _not_found(reply: Any) -> HeadraceError:
    return NotFoundError(f"there is no segment {reply.segment}", details={"segment": reply.segment})


def _truncated(reply: Any) -> HeadraceError:
    return TruncatedError(
        f"segment {reply.segment} begins at offset {reply.start_offset} now; what lay before is gone",
        details={"segment": reply.segment, "start_offset": reply.start_offset, "offset": reply.offset},
    )


def _invalid_event_number(reply: Any) -> HeadraceError:
    if reply.server_stack_trace == wire.WRITER_FORGOTTEN:
        return IllegalStateError(
            "the segment store has forgotten this writer, which was away for too long: whether its events in flight "
            "are stored is unknown; read the stream to learn it, and make a new writer",
            details={"event_number": reply.event_number},
            code=wire.WRITER_FORGOTTEN,
        )
    return ConflictError(
        "another connection took the writer over; set it up again",
        details={"event_number": reply.event_number},
    )


def _unsupported(reply: Any) -> HeadraceError:
    return InvalidRequestError(f"the segment store does not support {reply.operation_name}", code="unsupported")


def _unauthorized(reply: Any) -> HeadraceError:
    expired = reply.error_code == wire.TOKEN_EXPIRED
    return UnauthorizedError("the token has expired" if expired else "the segment store refused the token")


def _message(reply: Any) -> HeadraceError:
    if reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT:
        return InvalidRequestError(f"segment {reply.segment}: {reply.message}", details={"segment": reply.segment})
    if reply.error_code == wire.ERROR_CODE_SOURCE_INCOMPLETE:
        return source_incomplete(reply.segment)
    return UnavailableError(f"segment {reply.segment}: {reply.message}", details={"segment": reply.segment})


_ERRORS: dict[type[wire.WireCommand], Callable[[Any], HeadraceError]] = {
    wire.WrongHost: _wrong_host,
    wire.SegmentIsSealed: _sealed,
    wire.SegmentAlreadyExists: _already_exists,
    wire.NoSuchSegment: _not_found,
    wire.SegmentIsTruncated: _truncated,
    wire.InvalidEventNumber: _invalid_event_number,
    wire.OperationUnsupported: _unsupported,
    wire.AuthTokenCheckFailed: _unauthorized,
    wire.ErrorMessage: _message,
}
