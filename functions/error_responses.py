"""The error tree as HTTP responses: the statuses of the classes, and one JSON shape.

Every error of the API has the shape `{"error": {"code", "message", "retry", "details"}}`. An exception outside the
error tree is a fault of the service. Its response is a 500 without internal details, and the caller logs it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from headrace.metadata.fixed_settings import SETTING_CHANGED
from headrace.model import errors
from headrace.model.formats import RELEASE_REFUSED

BODY_TOO_LARGE = "body_too_large"

_STATUS_BY_CODE = {
    BODY_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    # Faults of the deployment, not of the client.
    SETTING_CHANGED: HTTPStatus.SERVICE_UNAVAILABLE,
    RELEASE_REFUSED: HTTPStatus.SERVICE_UNAVAILABLE,
}

_INTERNAL_MESSAGE = "an internal error occurred; the details are in the log of the function"


def status_of(error: errors.HeadraceError) -> HTTPStatus:
    """The HTTP status of an error."""
    if error.specific_code in _STATUS_BY_CODE:
        return _STATUS_BY_CODE[error.specific_code]
    return HTTPStatus(error.reported_as.http_status)


def error_body(error: errors.HeadraceError) -> dict[str, Any]:
    """The body of the response; an error with status 500 shows its code but no message or details of its own."""
    if status_of(error) is HTTPStatus.INTERNAL_SERVER_ERROR:
        return _body(error.code, _INTERNAL_MESSAGE, error.retry, {})
    return _body(error.specific_code, error.message, error.retry, error.details)


def unexpected_error_body() -> dict[str, Any]:
    """The body for an unexpected exception. It asks clients to retry later, because the fault may be temporary."""
    return _body(errors.HeadraceError.code, _INTERNAL_MESSAGE, "later", {})


def _body(code: str, message: str, retry: errors.Retry, details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "retry": retry, "details": details}}
