"""An HTTP server in front of a controller, which can stop the world before or after it forwards a request."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

RESTARTED_WITHIN_POLLS: Final = 600
_POLL_S: Final = 0.1
_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client, before or after it was forwarded."""

    method: str
    path: str
    body: bytes
    client_port: int
    forwarded: bool = False


Watch = Callable[[Request], bool]
"""Whether to go on. If not, the client gets no answer."""


class ControllerGate:
    """Forwards requests to `upstream`. `watch` is called before and after each one, in the thread of the connection.

    If the controller dies over a request, the client gets the answer of API Gateway for a function that ends. While it
    is started again, requests wait, as they do for a new process of a function.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.watch: Watch = lambda request: True
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def ask(self, request: Request) -> tuple[int, str, bytes]:
        """The answer of the controller: status, content type and body."""
        connection = self._connect()
        try:
            connection.request(request.method, request.path, request.body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.getheader("content-type", "application/json"), answer.read()
        except (OSError, http.client.HTTPException):
            return 500, "application/json", b'{"message":"Internal Server Error"}'
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        for _ in range(RESTARTED_WITHIN_POLLS):
            connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=_TIMEOUT_S)
            try:
                connection.connect()
            except ConnectionRefusedError:
                threading.Event().wait(_POLL_S)
                continue
            return connection
        raise ConnectionRefusedError(f"{self.upstream} does not come back")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, gate: ControllerGate) -> None:
        self.gate = gate
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client was killed."""


class _Connection(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def _forward(self) -> None:
        gate = self.server.gate
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        request = Request(self.command, self.path, body, self.client_address[1])
        if not gate.watch(request):
            self.close_connection = True
            return
        status, kind, content = gate.ask(request)
        if not gate.watch(replace(request, forwarded=True)):
            self.close_connection = True
            return
        self.send_response_only(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _forward
