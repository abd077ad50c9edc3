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
from headrace.ports.chunk_storage import CHUNK_STORAGE_REFUSED

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
_DEFECTS = frozenset(
    {
        "EntityTooLarge",
        "InvalidURI",
        "KeyTooLongError",
        "MalformedXML",
        "MethodNotAllowed",
        "MissingContentLength",
        "NotImplemented",
    }
)
"""Of a request that no S3 could take: repeating it cannot help, and only the code that sent it can be changed."""


def code_of(error: ClientError) -> str:
    """S3's error code; a HEAD has no body and so only a status as its code."""
    return str(error.response.get("Error", {}).get("Code", ""))


def failure(what: str, error: ClientError | BotoCoreError) -> HeadraceError:
    """The error to raise, `from error`, when doing `what` ended in `error`."""
    if not isinstance(error, ClientError):
        return UnavailableError(f"{what}: S3 did not answer: {error}")
    return _answered(what, code_of(error), str(error.response.get("Error", {}).get("Message", "")), _status(error))


def failure_of_key(what: str, code: str, message: str) -> HeadraceError:
    """The error to raise when one key of a batch failed with S3's `code`."""
    return _answered(what, code, message, 0)


def _answered(what: str, code: str, message: str, status: int) -> HeadraceError:
    """The error for a refusal by S3. A retry may succeed, because credentials, policies and clocks can change."""
    text, details = f"{what}: S3 answered {code}: {message}", {"cause": code}
    kind = _KINDS.get(code)
    if kind is not None:
        return kind(text, details=details)
    if code in _DEFECTS:
        return HeadraceError(text, details=details, code="chunk_storage_defect")
    refused = status < _SERVER_ERROR_STATUS
    return UnavailableError(text, details=details, code=CHUNK_STORAGE_REFUSED if refused else None)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
