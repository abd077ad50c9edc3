"""The HTTP API on loopback: the routes of the topology, served by the Lambda handlers in this process.

It answers by itself as API Gateway does: 404 for an unknown route, 413 above 10 MB, 500 if a function fails. It checks
no signature; on AWS every route requires IAM authorization. So it answers 403 to requests of pages of other sites.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headrace.adapters.gateway_events import (
    HttpRequest,
    HttpResponse,
    gateway_message,
    match_route,
    request_event,
    response_of,
)
from headrace.local.failures import EXIT_USAGE, LocalStackError
from headrace.local.lambda_host import HandlerFailedError, LambdaHost
from headrace.ports.clock import Clock
from headrace.topology import ROUTES

_LOOPBACK_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")


def is_foreign(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether a page of another site may have sent the request: by its name for this address, or by its origin.

    A browser sends requests to loopback addresses for any page. It shows answers only to pages of the same host, which
    another site can become by resolving its own name to a loopback address.
    """
    by_name: dict[str, list[str]] = {"host": [], "origin": []}
    for name, value in headers:
        by_name.get(name.lower(), []).append(value.strip().lower())
    hosts = by_name["host"]
    if len(hosts) > 1 or not all(map(_LOOPBACK_HOST.fullmatch, hosts)):
        return True
    return any(origin not in {f"http://{host}" for host in hosts} for origin in by_name["origin"])


LOOPBACK = "127.0.0.1"
BODY_BYTES_MAX = 10 * 1024 * 1024
REFUSED_BODY_BYTES_READ_MAX = 64 * 1024 * 1024
"""A refused body is still read up to this size, so that the client gets the response instead of a broken pipe."""

IDLE_CONNECTION_S = 75
_READ_BYTES = 64 * 1024
_STOP_POLL_S = 0.1
_BODY_METHODS = ("do_POST", "do_PUT", "do_PATCH")

_log = logging.getLogger(__name__)


class HttpGateway:
    """Binds its port when it is created, and answers requests after `serve`."""

    def __init__(self, clock: Clock, port: int = 0) -> None:
        """With `port` 0 the system chooses. Raises LocalStackError (exit code 2) if the port is in use."""
        self._host: LambdaHost | None = None
        self._clock = clock
        try:
            self._server = _Server((LOOPBACK, port), self)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise LocalStackError(
                f"cannot listen on {LOOPBACK}:{port}: {reason}; choose another port with --http-port, or stop the "
                "program that has this one",
                exit_code=EXIT_USAGE,
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_STOP_POLL_S,), name="http-gateway", daemon=True
        )

    def serve(self, host: LambdaHost) -> None:
        """Start to answer requests with the handlers of `host`."""
        self._host = host
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    def stop(self) -> None:
        """Accept no more requests. Running ones continue in their threads. It may be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def answer(self, request: HttpRequest) -> HttpResponse:
        """The response that API Gateway would give, or 403 to a page of another site: no caller signs its requests."""
        if is_foreign(request.headers):
            return gateway_message(403, "Forbidden")
        if len(request.body) > BODY_BYTES_MAX:
            return gateway_message(413, "Request Entity Too Large")
        if self._host is None:
            return gateway_message(503, "Service Unavailable")
        match = match_route(ROUTES, request.method, request.target.partition("?")[0])
        if match is None:
            return gateway_message(404, "Not Found")
        request_id = f"gateway-{threading.get_ident()}-{self._clock.now_ms()}"
        try:
            event = request_event(request, match, request_id, self._clock.now_ms())
            return response_of(self._host.invoke(match.route.function, event))
        except (HandlerFailedError, ValueError):
            _log.exception("%s %s failed", request.method, request.target)
            return gateway_message(500, "Internal Server Error")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], gateway: HttpGateway) -> None:
        self.gateway = gateway
        super().__init__(address, _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level only: a client may close its connection at any time."""
        _log.debug("connection of %s broke", client_address, exc_info=True)


class _Connection(BaseHTTPRequestHandler):
    """One persistent connection. Writes are buffered, so that header and body are sent in one packet."""

    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    timeout = IDLE_CONNECTION_S

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _serve(self) -> None:
        try:
            body = self._read_body()
        except ValueError as error:
            self.close_connection = True
            return self._send(gateway_message(400, str(error)))
        if body is None:
            self.close_connection = True
            return self._send(gateway_message(413, "Request Entity Too Large"))
        request = HttpRequest(
            self.command, self.path, tuple(self.headers.items()), body, self.client_address[0], self.request_version
        )
        return self._send(self.server.gateway.answer(request))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _serve

    def _read_body(self) -> bytes | None:
        """The body, or None if it is too large. Raises ValueError if its length is not a number."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return self._read_chunks()
        text = self.headers.get("content-length", "0")
        if not (text.isascii() and text.isdecimal()):
            raise ValueError("Content-Length is not a number")
        length = int(text)
        if length > BODY_BYTES_MAX:
            self._discard(min(length, REFUSED_BODY_BYTES_READ_MAX))
            return None
        return self.rfile.read(length)

    def _read_chunks(self) -> bytes | None:
        body = bytearray()
        while True:
            size_text = self.rfile.readline(_READ_BYTES).partition(b";")[0].strip()
            size = int(size_text, 16)
            if size < 0 or len(body) + size > BODY_BYTES_MAX:
                return None
            body += self.rfile.read(size)
            self.rfile.readline(_READ_BYTES)
            if size == 0:
                return bytes(body)

    def _discard(self, length: int) -> None:
        while length > 0:
            read = len(self.rfile.read(min(length, _READ_BYTES)))
            if read == 0:
                return
            length -= read

    def _send(self, response: HttpResponse) -> None:
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        if response.status != 204:
            self.send_header("content-length", str(len(response.body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD" and response.status != 204:
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  named by the base class
        _log.debug(format, *args)
