"""An S3 of one object on loopback, that fails as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAILURES = ["expired", "gone", "server error", "cut off", "other range", "range ignored", "no connection"]
"""And "trickle": a byte every TRICKLE_S."""

TRICKLE_S = 0.02
_STATUSES = {"expired": 403, "gone": 404, "server error": 503}


class ObjectServer:
    """Serves ranges of `data`. Before that, each entry of `failures` fails one request."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.failures: list[str] = []
        self.requests: list[str] = []
        """The Range header of each request."""
        self.connections = 0
        self.barrier: threading.Barrier | None = None
        """Each request waits here for others to come."""
        self.keeps_connections = True
        self.url = ""

    def fail(self, failures: Sequence[str] = ()) -> ObjectServer:
        """Forgets what was; the next requests fail."""
        self.failures, self.requests, self.barrier = list(failures), [], None
        return self


@contextmanager
def serving_object(data: bytes) -> Iterator[ObjectServer]:
    """The server with its URL set, answering until the block ends."""
    server = ObjectServer(data)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else the body, behind the headers, waits 40 ms for an acknowledgement

        def setup(self) -> None:
            super().setup()
            server.connections += 1

        def do_GET(self) -> None:
            asked = self.headers["Range"]
            server.requests.append(asked)
            if server.barrier is not None:
                server.barrier.wait(timeout=30)
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            part = server.data[first : last + 1]
            failure = server.failures.pop(0) if server.failures else None
            if failure == "no connection":
                self.close_connection = True
            elif failure in _STATUSES:
                self._send(_STATUSES[failure], b"no", 2)
            elif failure == "cut off":
                self._send(206, part[: len(part) // 2], len(part))
                self.close_connection = True
            elif failure == "other range":
                self._send(206, part + b"?", len(part) + 1)
            elif failure == "trickle":
                self._send(206, b"", len(part))
                for number in range(len(part)):
                    time.sleep(TRICKLE_S)
                    self.wfile.write(part[number : number + 1])
            elif failure == "range ignored":
                self._send(200, server.data, len(server.data))
            else:
                self._send(206, part, len(part))
            if not server.keeps_connections:
                self.close_connection = True  # without saying so, as a server that has waited too long

        def _send(self, status: int, body: bytes, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Tests look at the requests."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *arguments: Any) -> None:
            """A client may close its connection at any time."""

    http = Server(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}/object?signature=1"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
