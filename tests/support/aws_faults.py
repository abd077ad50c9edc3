"""A proxy before the AWS emulator that lets one service fail while the others work."""

from __future__ import annotations

import http.client
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

DYNAMODB: Final = "dynamodb"
S3: Final = "s3"
_SERVICE: Final = re.compile(r"/([a-z0-9]+)/aws4_request")
_SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_OF_CONNECTION: Final = frozenset({"connection", "transfer-encoding", "expect", "keep-alive"})


class AwsFaults:
    """While a service is in `unreachable`, its requests end without an answer; in `throttled`, with SlowDown."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is the address of the emulator."""
        self.unreachable: frozenset[str] = frozenset()
        self.throttled: frozenset[str] = frozenset()
        faults, upstream = self, urlsplit(endpoint).netloc

        class Handler(_Handler):
            def setup(self) -> None:
                super().setup()
                self.faults, self.upstream = faults, http.client.HTTPConnection(upstream)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="aws-faults")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    faults: AwsFaults
    upstream: http.client.HTTPConnection

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        service = self._service()
        if service in self.faults.unreachable:
            self.close_connection = True
        elif service in self.faults.throttled:
            self._answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
        else:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
            self.upstream.request(self.command, self.path, body, headers)
            answer = self.upstream.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read())

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def _service(self) -> str | None:
        """The service that the signature of a request names, in its header or in its query."""
        found = _SERVICE.search(self.headers.get("Authorization") or unquote(self.path))
        return None if found is None else found[1]

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of what HEAD does not send
            elif name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def finish(self) -> None:
        self.upstream.close()
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Requests are not logged."""
