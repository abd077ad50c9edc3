"""The HTTP layer that all controller functions share: request checks, Powertools' resolver, and error responses.

The API accepts only JSON. A body is bounded and parsed before the resolver gets it. So a body that is not JSON, too
large or nested too deeply is answered as a mistake of the client, never as a fault of the service.
"""

from __future__ import annotations

import base64
import binascii
import contextvars
import json
import os
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response, content_types
from aws_lambda_powertools.event_handler.exceptions import NotFoundError as NoRouteError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError

from functions import wiring
from functions.error_responses import BODY_TOO_LARGE, error_body, status_of, unexpected_error_body
from functions.observability import count, logger
from functions.time_limits import work_until_reserve
from headrace.adapters import token_keys
from headrace.api import response_headers
from headrace.model.errors import HeadraceError, InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes import APIGatewayProxyEventV2
    from aws_lambda_powertools.utilities.typing import LambdaContext

REQUEST_BODY_BYTES_MAX = 512 * 1024
"""A scale to 1,000 ranges or a cut of 1,000 segments takes about a tenth of it."""

PROBLEMS_SHOWN_MAX = 10

LOCAL_CALLER = "local"
"""The caller of each request to the local stack, which knows no principals."""

Handler = Callable[[dict[str, Any], "LambdaContext"], dict[str, Any]]


class HttpResolver(APIGatewayHttpResolver):
    """Powertools' resolver, made safe for concurrent requests.

    The original stores the current request on the class and its context on the resolver. That works in a Lambda
    function, whose process handles one request at a time, but not in the local stack with its threaded gateway.
    """

    def __init__(self) -> None:
        self._event: contextvars.ContextVar[Any] = contextvars.ContextVar("event")
        self._context: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("context", default=None)
        super().__init__(
            enable_validation=True,
            serializer=_json_text,
            # A response that does not match its own model is a fault of the service, not of the client.
            response_validation_error_http_code=HTTPStatus.INTERNAL_SERVER_ERROR,
        )

    @property
    def current_event(self) -> APIGatewayProxyEventV2:  # type: ignore[override]
        event: APIGatewayProxyEventV2 = self._event.get()
        return event

    @property
    def context(self) -> dict[str, Any]:
        held = self._context.get()
        if held is None:
            held = {}
            self._context.set(held)
        return held

    @context.setter
    def context(self, value: dict[str, Any]) -> None:
        self._context.set(value)

    def _to_proxy_event(self, event: dict[str, Any]) -> APIGatewayProxyEventV2:
        found: APIGatewayProxyEventV2 = super()._to_proxy_event(event)  # type: ignore[assignment]
        self._event.set(found)
        return found


def http_api(*, uses_metadata: bool = True) -> HttpResolver:
    """A resolver whose error responses all have the API's shape."""
    api = HttpResolver()
    if uses_metadata:
        api.use([_check_fixed_settings])
    api.exception_handler(HeadraceError)(_answer)
    api.exception_handler(RequestValidationError)(lambda error: _answer(_invalid_request(error)))
    api.exception_handler(NoRouteError)(lambda _error: _answer(_no_such_route()))
    api.exception_handler(Exception)(_answer_unexpected)
    return api


def _check_fixed_settings(api: HttpResolver, next_middleware: Callable[[HttpResolver], Any]) -> Any:
    """Check the settings first: with other numbers a request would look for records under the wrong keys."""
    wiring.fixed_settings().check()
    return next_middleware(api)


def caller_of(api: HttpResolver) -> str:
    """The IAM principal that signed the current request, or LOCAL_CALLER where requests are not signed."""
    context = api.current_event.raw_event.get("requestContext") or {}
    identity = (context.get("authorizer") or {}).get("iam") or {}
    return str(identity.get("userArn") or LOCAL_CALLER)


def lambda_handler(api: HttpResolver) -> Handler:
    """The handler that Lambda calls with an event of payload format 2.0; it returns a response of the same format."""

    @logger.inject_lambda_context
    def handle(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        answer: dict[str, Any]
        try:
            checked = _with_checked_body(event)
        except InvalidRequestError as error:
            answer = _lambda_response(int(status_of(error)), error_body(error))
        else:
            with work_until_reserve(context):
                answer = api.resolve(checked, context)
        if os.environ.get(token_keys.TOKENS) == token_keys.REQUIRED:
            answer["headers"][response_headers.TOKENS] = response_headers.TOKENS_REQUIRED
        count("Requests", status=f"{int(answer['statusCode']) // 100}xx")
        return answer

    return handle


def _with_checked_body(event: dict[str, Any]) -> dict[str, Any]:
    """The event with its body as text and with the content type of JSON.

    curl sends any body as a form by default, so the client's content type is ignored. Requests without a body get the
    type too, because the resolver answers any other type with an internal error.
    """
    headers = {name: value for name, value in (event.get("headers") or {}).items() if name.lower() != "content-type"}
    json_event = event | {"headers": headers | {"content-type": "application/json"}}
    body = event.get("body")
    if not body:
        return json_event
    # Four base64 characters stand for three bytes; a text of n characters has at least n bytes.
    bytes_min = len(body) // 4 * 3 - 2 if event.get("isBase64Encoded") else len(body)
    if bytes_min > REQUEST_BODY_BYTES_MAX:
        raise _too_large()
    try:
        text = base64.b64decode(body, validate=True).decode() if event.get("isBase64Encoded") else body
        if len(text.encode()) > REQUEST_BODY_BYTES_MAX:
            raise _too_large()
        json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except RecursionError as error:
        raise InvalidRequestError("the body is nested too deeply") from error
    except (ValueError, binascii.Error) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    return json_event | {"body": text, "isBase64Encoded": False}


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object with two fields of one name, since parsers differ in which of the two they use."""
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("an object names a field twice")


def _too_large() -> InvalidRequestError:
    return InvalidRequestError(
        f"the body is larger than {REQUEST_BODY_BYTES_MAX} bytes",
        details={"bytes_max": REQUEST_BODY_BYTES_MAX},
        code=BODY_TOO_LARGE,
    )


def _invalid_request(error: RequestValidationError) -> InvalidRequestError:
    """An error that names the field and the problem of each mistake, but no values: they may be secrets."""
    problems = [{"field": _field(one["loc"]), "problem": str(one["msg"])} for one in error.errors()]
    if not problems:
        problems = [{"field": "request", "problem": "is not valid"}]
    shown = problems[:PROBLEMS_SHOWN_MAX]
    text = "; ".join(f"{one['field']}: {one['problem']}" for one in shown)
    more = f"; and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
    return InvalidRequestError(f"the request is not valid: {text}{more}", details={"problems": shown})


def _field(location: tuple[str | int, ...]) -> str:
    return ".".join(ascii(str(part))[1:-1][:100] for part in location)


def _no_such_route() -> NotFoundError:
    return NotFoundError("there is no such route; see the API document", code="no_such_route")


def _answer_unexpected(error: Exception) -> Response[Any]:
    logger.error("request failed", exc_info=error)
    return _response(HTTPStatus.INTERNAL_SERVER_ERROR, unexpected_error_body())


def _answer(error: HeadraceError) -> Response[Any]:
    status = int(status_of(error))
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("request failed", exc_info=error)
    elif status > HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("request not served: %s", error)
    return _response(status, error_body(error))


def _response(status: int, body: Mapping[str, Any]) -> Response[Any]:
    return Response(status_code=status, content_type=content_types.APPLICATION_JSON, body=_json_text(body))


def _lambda_response(status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": content_types.APPLICATION_JSON}
    return {"statusCode": status, "headers": headers, "body": _json_text(body), "isBase64Encoded": False, "cookies": []}


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
