"""The kinds of errors that AWS services answer: one table for all adapters, by the code of the error.

A code that is not listed is a refusal that may end. Credentials, policies, keys, clocks and the deployment change
without this program, so that every refusal is repeated, and an operator is told of it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from botocore.exceptions import ClientError


class AnswerKind(Enum):
    """THROTTLED: later. ITEM: never, for this item. UNAVAILABLE: the service failed. REFUSED: an operator must act."""

    THROTTLED = "throttled"
    ITEM = "item"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"


_THROTTLED: Final = frozenset({
    "KmsThrottled",
    "OverLimit",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
})  # fmt: skip

_ITEM: Final = frozenset({
    "EntityTooLarge",
    "InvalidURI",
    "ItemCollectionSizeLimitExceeded",
    "ItemCollectionSizeLimitExceededException",
    "KeyTooLongError",
    "ValidationError",
    "ValidationException",
})  # fmt: skip
"""With the reasons of a cancelled transaction, which are shorter."""

_UNAVAILABLE: Final = frozenset({"InternalError", "InternalServerError", "InternalServiceError", "RequestTimeout"})
_SERVER_ERROR_STATUS: Final = 500


def code_of(error: ClientError) -> str:
    """The code of the error without the name space that some services put before it."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2].rpartition("#")[2]


def status_of(error: ClientError) -> int:
    """The HTTP status of the answer; 0 if it is not known."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def answer_kind(code: str, status: int = 0) -> AnswerKind:
    """The kind of an error with this code and HTTP status."""
    if code in _THROTTLED:
        return AnswerKind.THROTTLED
    if code in _ITEM:
        return AnswerKind.ITEM
    if code in _UNAVAILABLE or status >= _SERVER_ERROR_STATUS:
        return AnswerKind.UNAVAILABLE
    return AnswerKind.REFUSED
