"""The HTTP layer that all controller functions share: request checks, Powertools' resolver, and error responses.

The API accepts only JSON. A body is bounded and parsed before the resolver gets it. So a body that is not JSON, too
large or nested too deeply is answered as a mistake of the client, never as a fault of the service.
"""

from __future__ import annotations

import base64
import binascii
import contextvars
import json
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response, content_types
from aws_lambda_powertools.event_handler.exceptions import NotFoundError as NoRouteError

from functions import wiring
from functions.audit import audit
from functions.callers import principal_of, requester_of
from functions.canonical_paths import canonical_event
from functions.error_responses import BODY_TOO_LARGE, error_body, status_of, unexpected_error_body
from functions.observability import count, logger
from functions.operations import Operation
from functions.time_limits import work_until_reserve
from headrace.api import response_headers
from headrace.model.documents import Document
from headrace.model.errors import HeadraceError, InvalidRequestError, NotFoundError
from headrace.ports.request_queue import requested_by

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes import APIGatewayProxyEventV2
    from aws_lambda_powertools.utilities.typing import LambdaContext

REQUEST_BODY_BYTES_MAX = 512 * 1024
"""A scale to 1,000 ranges or a cut of 1,000 segments takes about a tenth of it."""

_PARSED_BODY = "headrace.parsedBody"
"""Where an event has its body, parsed."""

Handler = Callable[[dict[str, Any], "LambdaContext"], dict[str, Any]]


class _Resolver(APIGatewayHttpResolver):
    """Powertools' resolver, made safe for concurrent requests.

    The original stores the current request on the class and its context on the resolver. That works in a Lambda
    function, whose process handles one request at a time, but not in the local stack with its threaded gateway.
    """

    def __init__(self) -> None:
        self._event: contextvars.ContextVar[Any] = contextvars.ContextVar("event")
        self._context: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("context", default=None)
        super().__init__(serializer=_json_text)

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
        proxied: APIGatewayProxyEventV2 = super()._to_proxy_event(event)  # type: ignore[assignment]
        self._event.set(proxied)
        return proxied


H = TypeVar("H", bound=Callable[..., Document | None])


class HttpApi:
    """The operations of a function. All error responses have the API's shape."""

    def __init__(self, *, uses_metadata: bool = True, headers: Mapping[str, str] | None = None) -> None:
        """`headers` are part of each answer that is not an error."""
        self.operations: list[Operation] = []
        self._by_key: dict[str, Operation] = {}
        self._resolver = _Resolver()
        self._uses_metadata = uses_metadata
        self._headers = dict(headers or {})
        self._resolver.exception_handler(HeadraceError)(_answer)
        self._resolver.exception_handler(NoRouteError)(lambda _error: _answer(_no_such_route()))
        self._resolver.exception_handler(Exception)(_answer_unexpected)

    def route(
        self,
        method: str,
        path: str,
        *,
        summary: str,
        tag: str,
        status: int = HTTPStatus.OK,
        descriptions: Mapping[int, str] | None = None,
    ) -> Callable[[H], H]:
        """Declares the handler of a route. `descriptions` are those of statuses in the API document."""

        def declare(handler: H) -> H:
            operation = Operation(method, path, handler, summary, (tag,), status, descriptions or {})
            self.operations.append(operation)
            self._by_key[f"{method} {path.replace('<', '{').replace('>', '}')}"] = operation

            def respond(**values: str) -> Response[Any]:
                return self._respond(operation, values)

            self._resolver.route(path, method)(respond)
            return handler

        return declare

    def resolve(self, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        return self._resolver.resolve(event, context)

    def declared_parts(self, event: Mapping[str, Any], body: Any) -> tuple[dict[str, str], Any]:
        """The query and the body of a request without what its handler ignores."""
        operation = self._by_key.get(str(event.get("routeKey", "")))
        return operation.declared_parts(event.get("queryStringParameters") or {}, body) if operation else ({}, None)

    @property
    def caller(self) -> str:
        """The IAM principal that signed the current request, or `LOCAL_CALLER` where requests are not signed."""
        return principal_of(self._resolver.current_event.raw_event)

    def _respond(self, operation: Operation, path: Mapping[str, str]) -> Response[Any]:
        if self._uses_metadata:
            # With other settings a request would look for records under the wrong keys.
            wiring.fixed_settings().check()
        event = self._resolver.current_event.raw_event
        document = operation.call(path, event.get("queryStringParameters") or {}, event.get(_PARSED_BODY))
        if document is None:
            return Response(HTTPStatus.NO_CONTENT, headers=dict(self._headers))
        return _response(operation.status, document.to_json(), self._headers)


def lambda_handler(api: HttpApi) -> Handler:
    """The handler that Lambda calls with an event of payload format 2.0; it returns a response of the same format."""

    @logger.inject_lambda_context
    def handle(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        answer, body = _answered(api, event, context)
        audit(event, *api.declared_parts(event, body), answer)
        if wiring.environment().requires_tokens:
            answer["headers"][response_headers.TOKENS] = response_headers.TOKENS_REQUIRED
        count("Requests", status=f"{int(answer['statusCode']) // 100}xx")
        return answer

    return handle


def _answered(api: HttpApi, event: dict[str, Any], context: LambdaContext) -> tuple[dict[str, Any], Any]:
    """The answer to a request, and the body of the request if it is JSON."""
    try:
        with_body = _with_parsed_body(canonical_event(event))
    except InvalidRequestError as error:
        return _lambda_response(int(status_of(error)), error_body(error)), None
    with requested_by(requester_of(event)), work_until_reserve(context):
        try:
            answer = api.resolve(with_body, context)
        except Exception as error:  # noqa: BLE001  The audit line must be written, and Lambda would answer 500 too.
            logger.error("request failed", exc_info=error)
            answer = _lambda_response(HTTPStatus.INTERNAL_SERVER_ERROR, unexpected_error_body())
    return answer, with_body.get(_PARSED_BODY)


def _with_parsed_body(event: dict[str, Any]) -> dict[str, Any]:
    """The event with its body, parsed. The content type is ignored: curl sends any body as a form by default."""
    body = event.get("body")
    if not body:
        return event
    # Four base64 characters stand for three bytes; a text of n characters has at least n bytes.
    bytes_min = len(body) // 4 * 3 - 2 if event.get("isBase64Encoded") else len(body)
    if bytes_min > REQUEST_BODY_BYTES_MAX:
        raise _too_large()
    try:
        text = base64.b64decode(body, validate=True).decode() if event.get("isBase64Encoded") else body
        if len(text.encode()) > REQUEST_BODY_BYTES_MAX:
            raise _too_large()
        parsed = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_refuse_duplicates
        )
    except RecursionError as error:
        raise InvalidRequestError("the body is nested too deeply") from error
    except (ValueError, binascii.Error) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    return event | {_PARSED_BODY: parsed}


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:100]} is too large a number")
    return number


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses an object with two fields of one name, since parsers differ in which of the two they use."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("an object names a field twice")
    return document


def _too_large() -> InvalidRequestError:
    return InvalidRequestError(
        f"the body is larger than {REQUEST_BODY_BYTES_MAX} bytes",
        details={"bytes_max": REQUEST_BODY_BYTES_MAX},
        code=BODY_TOO_LARGE,
    )


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


def _response(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response[Any]:
    text = _json_text(body)
    return Response(status, content_types.APPLICATION_JSON, text, headers=dict(headers or {}))


def _lambda_response(status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": content_types.APPLICATION_JSON}
    return {"statusCode": status, "headers": headers, "body": _json_text(body), "isBase64Encoded": False, "cookies": []}


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
