"""The table of errors in both directions: from an error of the store to its reply, and to the error of the client."""

from __future__ import annotations

import pytest

from headrace import wire
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    FencedError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    OutOfTimeError,
    SealedError,
    ThrottledError,
    TruncatedError,
    UnauthorizedError,
    UnavailableError,
    error_classes,
    source_incomplete,
)
from headrace.wire.error_table import ERROR_TABLE
from headrace.wire.fields import LAYOUTS

NAME = "s/t/0.#epoch.0"
REQUEST = wire.Refused(7, NAME)
TRUNCATION = wire.Refused(7, NAME, truncation_offset=90)
APPEND = wire.Refused(7, NAME, writer_id=5, event_number=12)


@pytest.mark.parametrize(
    ("error", "refused", "reply"),
    [
        (FencedError("m"), REQUEST, wire.WrongHost(7, NAME)),
        (UnavailableError("m"), REQUEST, wire.WrongHost(7, NAME)),
        (OutOfTimeError("m"), APPEND, wire.WrongHost(7, NAME)),
        (NotFoundError("m"), REQUEST, wire.NoSuchSegment(7, NAME)),
        (NotFoundError("m", details={"segment": "source"}), REQUEST, wire.NoSuchSegment(7, "source")),
        (SealedError("m"), REQUEST, wire.SegmentIsSealed(7, NAME)),
        (SealedError("m"), APPEND, wire.SegmentIsSealed(7, NAME, "", 12)),
        (TruncatedError("m"), TRUNCATION, wire.SegmentIsTruncated(7, NAME, 90, "", 90)),
        (AlreadyExistsError("m"), REQUEST, wire.SegmentAlreadyExists(7, NAME)),
        (ConflictError("m", code="offset"), APPEND, wire.ConditionalCheckFailed(5, 12, 7)),
        (ConflictError("m", code="event_number"), APPEND, wire.InvalidEventNumber(5, 7, "", 12)),
        (
            ConflictError("m", code=wire.WRITER_FORGOTTEN),
            APPEND,
            wire.InvalidEventNumber(5, 7, wire.WRITER_FORGOTTEN, 12),
        ),
        (ConflictError("m", code="attribute"), REQUEST, wire.SegmentAttributeUpdated(7, False)),
        (ConflictError("m", code="table_key_missing"), REQUEST, wire.TableKeyDoesNotExist(7, NAME)),
        (ConflictError("m", code="table_key_version"), REQUEST, wire.TableKeyBadVersion(7, NAME)),
        (
            ConflictError("m", code="table_offset", details={"length": 40}),
            REQUEST,
            wire.SegmentIsTruncated(7, NAME, 40),
        ),
        (IllegalStateError("m", code="table_not_empty"), REQUEST, wire.TableSegmentNotEmpty(7, NAME)),
        (
            source_incomplete("source"),
            REQUEST,
            wire.ErrorMessage(7, "source", source_incomplete("source").message, wire.ERROR_CODE_SOURCE_INCOMPLETE),
        ),
        (UnauthorizedError("m", code="token_expired"), REQUEST, wire.AuthTokenCheckFailed(7, "", wire.TOKEN_EXPIRED)),
        (
            UnauthorizedError("m", code="token_invalid"),
            REQUEST,
            wire.AuthTokenCheckFailed(7, "", wire.TOKEN_CHECK_FAILED),
        ),
        (UnauthorizedError("m"), REQUEST, wire.AuthTokenCheckFailed(7, "", wire.TOKEN_CHECK_FAILED)),
        (InvalidRequestError("m"), REQUEST, wire.ErrorMessage(7, NAME, "m", wire.ERROR_CODE_ILLEGAL_ARGUMENT)),
        (InvalidRequestError("m"), APPEND, wire.ErrorMessage(7, NAME, "m")),
        (ConflictError("m"), REQUEST, wire.ErrorMessage(7, NAME, "m")),
        (ThrottledError("m"), APPEND, wire.ErrorMessage(7, NAME, "m")),
        (CorruptError("m"), REQUEST, wire.ErrorMessage(7, NAME, "m")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reply_of_error(error: HeadraceError, refused: wire.Refused, reply: wire.WireCommand) -> None:
    assert wire.reply_of_error(error, refused) == reply


@pytest.mark.parametrize("kind", list(error_classes().values()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("refused", [REQUEST, APPEND], ids=["request", "append"])
def test_every_error_has_a_reply(kind: type[HeadraceError], refused: wire.Refused) -> None:
    reply = wire.reply_of_error(kind("m"), refused)
    assert type(wire.error_of_reply(reply)) is not CorruptError


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (wire.WrongHost(7, NAME), UnavailableError, "wrong_host"),
        (wire.NoSuchSegment(7, NAME), NotFoundError, "not_found"),
        (wire.SegmentIsSealed(7, NAME), SealedError, "sealed"),
        (wire.SegmentIsTruncated(7, NAME, 40), TruncatedError, "truncated"),
        (wire.SegmentAlreadyExists(7, NAME), AlreadyExistsError, "already_exists"),
        (wire.ConditionalCheckFailed(5, 12, 7), ConflictError, "offset"),
        (wire.InvalidEventNumber(5, 7, "", 12), ConflictError, "conflict"),
        (wire.InvalidEventNumber(5, 7, wire.WRITER_FORGOTTEN, 12), IllegalStateError, wire.WRITER_FORGOTTEN),
        (wire.SegmentAttributeUpdated(7, False), ConflictError, "attribute"),
        (wire.TableKeyDoesNotExist(7, NAME), ConflictError, "table_key_missing"),
        (wire.TableKeyBadVersion(7, NAME), ConflictError, "table_key_version"),
        (wire.TableSegmentNotEmpty(7, NAME), IllegalStateError, "table_not_empty"),
        (wire.ErrorMessage(7, NAME, "m", wire.ERROR_CODE_SOURCE_INCOMPLETE), IllegalStateError, "source_incomplete"),
        (wire.ErrorMessage(7, NAME, "m", wire.ERROR_CODE_ILLEGAL_ARGUMENT), InvalidRequestError, "invalid_request"),
        (wire.ErrorMessage(7, NAME, "m"), UnavailableError, "unavailable"),
        (wire.ErrorMessage(7, NAME, "m", 99), UnavailableError, "unavailable"),
        (wire.OperationUnsupported(7, "seal"), InvalidRequestError, "unsupported"),
        (wire.AuthTokenCheckFailed(7, "", wire.TOKEN_EXPIRED), UnauthorizedError, "token_expired"),
        (wire.AuthTokenCheckFailed(7, "", wire.TOKEN_CHECK_FAILED), UnauthorizedError, "token_invalid"),
        (wire.AuthTokenCheckFailed(7), UnauthorizedError, "token_invalid"),
        (wire.SegmentAttributeUpdated(7, True), CorruptError, "corrupt"),
        (wire.SegmentSealed(7, NAME), CorruptError, "corrupt"),
        (wire.KeepAlive(), CorruptError, "corrupt"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, wire.WireCommand) else None,
)
def test_error_of_reply(reply: wire.WireCommand, kind: type[HeadraceError], code: str) -> None:
    error = wire.error_of_reply(reply)
    assert (type(error), error.specific_code) == (kind, code)


@pytest.mark.parametrize(
    ("reply", "temporary"),
    [
        (wire.WrongHost(7, NAME), True),
        (wire.ErrorMessage(7, NAME, "recovering"), True),
        (wire.ErrorMessage(7, NAME, "m", wire.ERROR_CODE_ILLEGAL_ARGUMENT), False),
        (wire.NoSuchSegment(7, NAME), False),
        (wire.SegmentSealed(7, NAME), False),
    ],
)
def test_only_temporary_errors_are_repeated(reply: wire.WireCommand, temporary: bool) -> None:
    assert isinstance(wire.temporary_error(reply), UnavailableError) == temporary


def test_every_error_command_is_in_the_table() -> None:
    commands = {kind for kind in LAYOUTS if kind.__module__ == "headrace.wire.error_table"}
    assert commands <= {row.reply for row in ERROR_TABLE}
