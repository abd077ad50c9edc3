"""GET /health over plain HTTP: 200 while every claimed container is served, 503 otherwise. Nothing else is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

REQUEST_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0

Status = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether all is well, and what to show."""


class HealthServer:
    """`status` is asked anew for each request."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        if self._server is None:
            return 0
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def start(self, host: str, port: int) -> None:
        """Raises OSError if the port is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_TIMEOUT_S)
            writer.write(self._answer(request))
            await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # whoever asked is gone, too slow or no HTTP client
        finally:
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0]
        if method not in (b"GET", b"HEAD") or path != b"/health":
            return _response("404 Not Found", {"error": "only GET /health is served here"})
        well, shown = self._status()
        return _response("200 OK" if well else "503 Service Unavailable", shown)


def _response(status: str, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + content
