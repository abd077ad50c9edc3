"""Who may use the console: requests of this machine's browser that came with the printed token, and no others.

The token in the printed address is exchanged for a cookie that scripts and other sites do not get, and removed from
the address. `Host` and `Origin` are checked, so that a page of another site cannot reach the console by a name that
resolves to loopback. A form must come with the `Origin` of the console itself, which each browser sends.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

Scope = Mapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
Refuse = Callable[[Request, int, str, str], Response]
"""Makes the page of a refusal from the request, the status, a title, and what to do."""

TOKEN_BYTES = 24
TOKEN_PARAMETER = "token"
STATIC = "/static/"

HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class BrowserGuard:
    """Wraps the application `app`, which listens on `port` of loopback. `token` is the one in the printed address."""

    def __init__(self, app: App, port: int, token: str, refuse: Refuse, *, takes_forms: bool = False) -> None:
        self._app = app
        self._token = token
        self._refuse = refuse
        self._methods = ("GET", "HEAD", "POST") if takes_forms else ("GET", "HEAD")
        self._session = secrets.token_urlsafe(TOKEN_BYTES)
        self._cookie = f"headrace-console-{port}"  # cookies belong to a host, of any port
        self._hosts = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        answer = self._refusal(Request(scope)) or self._exchange(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if host not in self._hosts:
            return self._refuse(request, 421, "Unknown host", "Open the address that the command printed.")
        origin = request.headers.get("origin")
        if request.method not in self._methods:
            return self._refuse(
                request, 405, "The console only reads", "Use the command line, or `headrace console --allow-changes`."
            )
        if origin != f"http://{host}" and (origin is not None or request.method == "POST"):
            return self._refuse(request, 403, "Request of another site", "Open the console in a tab of its own.")
        return None

    def _exchange(self, request: Request) -> Response | None:
        """The redirect that sets the cookie, or a refusal without token and cookie; None if the request may go on."""
        token = request.query_params.get(TOKEN_PARAMETER)
        if token is not None:
            if not _equal(token, self._token):
                return self._refuse(
                    request, 401, "Unknown token", "The console was started again: open the address it printed last."
                )
            rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != TOKEN_PARAMETER]
            answer = RedirectResponse(_local(request.url.path) + (f"?{urlencode(rest)}" if rest else ""), 303)
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
            return answer
        if request.url.path.startswith(STATIC) or self._has_cookie(request):
            return None
        return self._refuse(
            request,
            401,
            "No access",
            "Open the address with the token that `headrace console` or `headrace up` printed.",
        )

    def _has_cookie(self, request: Request) -> bool:
        sent = request.cookies.get(self._cookie)  # cookies of other servers of this host may be invalid
        return sent is not None and _equal(sent, self._session)


def _equal(sent: str, expected: str) -> bool:
    return hmac.compare_digest(sent.encode(), expected.encode())


def _local(path: str) -> str:
    """A path that no browser takes for the address of another host."""
    return "/" + path.lstrip("/\\")
