"""JSON requests to the controller's HTTP API, with error mapping and retries.

An error response raises the same class of error that the controller raised. A request is retried, with back-off, if the
error says that a retry can succeed. A request whose outcome is unknown is retried only if it is idempotent.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx

from headrace.api.response_headers import TOKENS, TOKENS_REQUIRED
from headrace.client.backoff import Backoff
from headrace.client.client_zone import ClientZone
from headrace.client.closing import close_wholly
from headrace.client.ownership import Ownership, Unpicklable, keep_in_children
from headrace.model import errors
from headrace.model.arguments import check_argument
from headrace.model.external_access import Network

T = TypeVar("T")

REQUEST_TIMEOUT_S = 30.0
CONNECTIONS_MAX = 20

WAITING_AFTER_S = 1.0
OnWaiting = Callable[[str], object]
"""Called with the URL of the controller if a request has no answer after `WAITING_AFTER_S`, repetitions included."""
_BODY_TEXT_SHOWN = 200
_QUESTION = "is that the address of a Headrace controller?"
NOT_A_CONTROLLER = "not_a_controller"
_CREDENTIALS = re.compile(r"^([a-zA-Z]+://)?.*@", re.DOTALL)
_PORTS = 65_536
_JSON = {"content-type": "application/json"}
_PATH = re.compile(r"(?:(?:/|%2F)(?!\.{1,2}(?:/|%2F|$))[A-Za-z0-9._~:\-]+)+")

_OF_GATEWAY: dict[int, type[errors.HeadraceError]] = {
    401: errors.UnauthorizedError,
    500: errors.UnavailableError,
    502: errors.UnavailableError,
    504: errors.UnavailableError,
}
"""Statuses of API Gateway. It answers 500 to 504 by itself if a function ends, fails or takes too long."""

_BY_CODE = errors.error_classes()


class HttpApi(Unpicklable):
    """The controller at `url`. `retry_s` is how long a failed request is retried, in seconds.

    `network` is that of the client, for requests that ask for the addresses of segment stores. `zone` is where it runs.
    `demands_tokens` is whether an answer said that the segment stores want delegation tokens. `url` is for messages: it
    has no user name and no password.
    """

    def __init__(
        self,
        url: str,
        *,
        auth: httpx.Auth | None = None,
        retry_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        on_waiting: OnWaiting | None = None,
        network: Network = Network.VPC,
        zone: ClientZone | None = None,
    ) -> None:
        """`zone` None: it is not known."""
        _check_url(url)
        check_argument("retry_s", retry_s, float)
        self.url = shown_url(url)
        self.network = network
        self.zone = zone or ClientZone("")
        self.demands_tokens = False
        self._retry_s = retry_s
        self._on_waiting = on_waiting
        self._ownership = Ownership()
        keep_in_children(self)
        self._client = httpx.AsyncClient(
            base_url=url,
            auth=auth,
            timeout=REQUEST_TIMEOUT_S,
            transport=transport,
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            trust_env=url.startswith("https://"),
            verify=url.startswith("https://"),  # else the certificates would be read without a use
        )

    @property
    def network_query(self) -> dict[str, str] | None:
        """The query of a request whose answer has addresses; None for those in the network of the stores.

        A controller of a release before this one knows no other addresses, and would refuse the parameter.
        """
        return None if self.network is Network.VPC else {"network": self.network.value}

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int] | None = None,
        repeatable: bool = True,
        retry_s: float | None = None,
    ) -> dict[str, Any]:
        """Sends a request. Returns the JSON object of the answer, {} if it has no body.

        `repeatable=False` marks a request that must not be sent again when its outcome is unknown. `retry_s` is how
        long a failed request is retried, if not as long as the client's.

        Raises:
            InvalidRequestError: code "invalid_path": a name in `path` could lead the request to another resource.
            HeadraceError: the error that the controller answered.
            UnavailableError: the controller could not be reached, or did not answer; it may have run the request.
            IllegalStateError: code "opened_before_fork" or "other_event_loop".
        """
        self._ownership.check()
        _check_path(path)
        if self._on_waiting is None:
            return await self._request(method, path, body, query, repeatable, retry_s)
        waiting = asyncio.get_running_loop().call_later(WAITING_AFTER_S, self._on_waiting, self.url)
        try:
            return await self._request(method, path, body, query, repeatable, retry_s)
        finally:
            waiting.cancel()

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str | int] | None,
        repeatable: bool,
        retry_s: float | None,
    ) -> dict[str, Any]:
        content, headers = (None, None) if body is None else (_json_bytes(body), _JSON)
        backoff = Backoff(self._retry_s if retry_s is None else retry_s)
        while True:
            try:
                response = await self._client.request(method, path, content=content, headers=headers, params=query)
            except httpx.RequestError as failure:
                problem: errors.HeadraceError = errors.UnavailableError(
                    f"the controller at {self.url} does not answer ({_reason(failure)}); is it up?",
                    details={"url": self.url},
                )
                if not repeatable and not isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout):
                    raise problem from failure
            else:
                if response.headers.get(TOKENS) == TOKENS_REQUIRED:
                    self.demands_tokens = True
                if response.is_success:
                    return _answer(response)
                problem, was_run = _error_of(response)
                if problem.retry == "never" or (was_run and not repeatable):
                    raise problem
            await backoff.wait(problem)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._client.is_closed

    async def close(self) -> None:
        if not self._ownership.has_gone():
            await close_wholly(self._client.aclose())  # after a cancelled one it would do nothing any more


def _check_url(url: str) -> None:
    """Raises InvalidRequestError unless it is the address of a server."""
    check_argument("url", url, str)
    shown = shown_url(url)
    if not url.startswith(("http://", "https://")):
        raise errors.InvalidRequestError(
            f"the controller's URL {shown!r} must begin with http:// or https://, as http://127.0.0.1:10080 does"
        )
    try:
        parts = httpx.URL(url)
        # httpx encodes what a name cannot have with `%`; an address of IPv6 may have a zone behind one.
        has_host = bool(parts.host) and (":" in parts.host or "%" not in parts.host)
        has_valid_port = parts.port is None or 0 < parts.port < _PORTS
    except httpx.InvalidURL as error:
        reason = f": {error}" if shown == url else ""  # it may quote the password
        raise errors.InvalidRequestError(f"the controller's URL {shown!r} is not valid{reason}") from None
    if not (has_host and has_valid_port) or parts.query or parts.fragment:
        raise errors.InvalidRequestError(
            f"the controller's URL {shown!r} must be http:// or https:// with a host, and perhaps a port and a path"
        )


def shown_url(url: str) -> str:
    """The URL without a user name and a password."""
    return _CREDENTIALS.sub(r"\1", url)


def parsed(parse: Callable[[Mapping[str, Any]], T], answer: Mapping[str, Any]) -> T:
    """Returns `parse(answer)`. Raises CorruptError if a field is missing or has an invalid value."""
    try:
        return parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.CorruptError(
            f"the controller's answer lacks a field or has an invalid one ({error!r}): {str(answer)[:300]}"
        ) from error


def _json_bytes(body: Mapping[str, Any]) -> bytes:
    """Raises InvalidRequestError for what JSON cannot have: infinite numbers, and text that is not Unicode."""
    from headrace.model.documents import plain_value

    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=plain_value)
        return text.encode()
    except ValueError as error:
        raise errors.InvalidRequestError(
            f"an argument cannot be sent to the controller: {error}", code="invalid_argument"
        ) from error


def _check_path(path: str) -> None:
    """Refuses a path that does not arrive as it is: the HTTP client and proxies remove dot segments, and '?' ends it.

    A name in it would then select another resource or another route. `%2F` may be decoded on the way.
    """
    if not _PATH.fullmatch(path):
        raise errors.InvalidRequestError(
            f"no request is sent to the path {path[:_BODY_TEXT_SHOWN]!a}: a name in it is not allowed",
            code="invalid_path",
        )


def _answer(response: httpx.Response) -> dict[str, Any]:
    if response.status_code == httpx.codes.NO_CONTENT or not response.content:
        return {}
    answer = _document(response)
    if not isinstance(answer, dict):
        raise _not_a_controller(
            response, f"did not answer a JSON object: {response.text[:_BODY_TEXT_SHOWN]!r}", errors.CorruptError
        )
    return answer


def _document(response: httpx.Response) -> Any:
    """The JSON document of an answer; None if it has none."""
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _asked(response: httpx.Response) -> str:
    return shown_url(str(response.request.url.copy_with(query=None)))


def _not_a_controller(
    response: httpx.Response, answered: str, kind: type[errors.HeadraceError]
) -> errors.HeadraceError:
    url = _asked(response)
    return kind(f"{url} {answered}; {_QUESTION}", details={"url": url}, code=NOT_A_CONTROLLER)


def _error_of(response: httpx.Response) -> tuple[errors.HeadraceError, bool]:
    """The error, and whether the controller may have run the request nevertheless."""
    was_run = response.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    document = _document(response)
    try:
        return error_from_json(response.status_code, document["error"]), was_run
    except (KeyError, TypeError, AttributeError):
        kind = _class_of_status(response.status_code)
        shown = response.text[:_BODY_TEXT_SHOWN]
        answered = f"answered status {response.status_code}" + (f": {shown!r}" if shown else " and no text")
        if kind is not errors.NotFoundError:
            return kind(f"{_asked(response)} {answered}"), response.is_server_error
        if not (isinstance(document, dict) and "message" in document):
            kind = errors.CorruptError  # a caller would take a NotFoundError for a resource that was deleted
        # API Gateway answers a message for a route that an older controller does not have.
        return _not_a_controller(response, answered, kind), False


def _reason(failure: httpx.RequestError) -> str:
    """Some errors of a connection have no text."""
    return f"{type(failure).__name__}: {failure}".removesuffix(": ")


def error_from_json(status: int, document: Mapping[str, Any]) -> errors.HeadraceError:
    """Returns the error that the controller answered with a status; KeyError, TypeError, AttributeError if invalid."""
    code, message = str(document["code"]), str(document["message"])
    details, retry = document.get("details"), document.get("retry")
    kind = _BY_CODE.get(code) or _kind_of_status(status, retry)
    if kind is errors.HeadraceError and retry == "later":
        kind = errors.UnavailableError  # an error that the controller did not foresee; it may pass
    return kind(message, details=details if isinstance(details, dict) else None, code=code)


def _kind_of_status(status: int, retry: object) -> type[errors.HeadraceError]:
    """Returns the error class for a code that this version of the client does not know."""
    if status == httpx.codes.CONFLICT:
        return errors.ConflictError if retry == "now" else errors.AlreadyExistsError
    if status == httpx.codes.INTERNAL_SERVER_ERROR:
        return errors.HeadraceError
    return _class_of_status(status)


def _class_of_status(status: int) -> type[errors.HeadraceError]:
    return _OF_GATEWAY.get(status) or errors.class_of_status(status)
