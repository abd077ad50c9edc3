"""What S3 and botocore raise, as errors of our tree: one table, and nothing of the cause is lost."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from headrace.model.errors import (
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)

PRECONDITION_FAILED = "PreconditionFailed"

_KINDS: dict[str, type[HeadraceError]] = {
    PRECONDITION_FAILED: AlreadyExistsError,
    "NoSuchKey": NotFoundError,
    "InvalidRange": NotFoundError,
    # Another conditional write of the same key is under way: S3 asks to try again, which is not to say it exists.
    "ConditionalRequestConflict": ThrottledError,
    "OperationAborted": ThrottledError,
    "SlowDown": ThrottledError,
    "Throttling": ThrottledError,
    "ThrottlingException": ThrottledError,
    "RequestLimitExceeded": ThrottledError,
    "ServiceUnavailable": ThrottledError,
    "RequestTimeout": UnavailableError,
    "InternalError": UnavailableError,
}
_SERVER_ERROR_STATUS = 500


def code_of(error: ClientError) -> str:
    """S3's error code; a HEAD has no body and so only a status as its code."""
    return str(error.response.get("Error", {}).get("Code", ""))


def failure(what: str, error: ClientError | BotoCoreError) -> HeadraceError:
    """The error to raise, `from error`, when doing `what` ended in `error`."""
    if not isinstance(error, ClientError):
        return UnavailableError(f"{what}: S3 did not answer: {error}")
    code = code_of(error)
    kind = _KINDS.get(code)
    if kind is None and _status(error) >= _SERVER_ERROR_STATUS:
        kind = UnavailableError
    message = f"{what}: S3 answered {code}: {error.response.get('Error', {}).get('Message', '')}"
    if kind is None:
        return HeadraceError(message, details={"cause": code}, code="chunk_storage_refused")
    return kind(message, details={"cause": code})


def failure_of_key(what: str, code: str, message: str) -> HeadraceError:
    """The error to raise when one key of a batch failed with S3's `code`."""
    return _KINDS.get(code, HeadraceError)(f"{what}: S3 answered {code}: {message}", details={"cause": code})


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
