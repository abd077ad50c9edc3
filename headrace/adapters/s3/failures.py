"""What S3 and botocore raise, as errors of our tree: one table, and nothing of the cause is lost."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from headrace.adapters.aws_refusals import AnswerKind, answer_kind, code_of, status_of
from headrace.model.errors import (
    AlreadyExistsError,
    HeadraceError,
    InvalidRequestError,
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
}
"""What only S3 answers; the rest is in `headrace.adapters.aws_refusals`."""


def failure(what: str, error: ClientError | BotoCoreError) -> HeadraceError:
    """The error to raise, `from error`, when doing `what` ended in `error`."""
    if not isinstance(error, ClientError):
        return UnavailableError(f"{what}: S3 did not answer: {error}")
    return _answered(what, code_of(error), str(error.response.get("Error", {}).get("Message", "")), status_of(error))


def failure_of_key(what: str, code: str, message: str) -> HeadraceError:
    """The error to raise when one key of a batch failed with S3's `code`."""
    return _answered(what, code, message, 0)


def _answered(what: str, code: str, message: str, status: int) -> HeadraceError:
    text, details = f"{what}: S3 answered {code}: {message}", {"cause": code}
    if code in _KINDS:
        return _KINDS[code](text, details=details)
    match answer_kind(code, status):
        case AnswerKind.THROTTLED:
            return ThrottledError(text, details=details)
        case AnswerKind.ITEM:
            return InvalidRequestError(text, details=details)
        case AnswerKind.UNAVAILABLE:
            return UnavailableError(text, details=details)
        case AnswerKind.REFUSED:
            return UnavailableError(text, details=details, code=CHUNK_STORAGE_REFUSED)
