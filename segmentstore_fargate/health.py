"""Serves the pages of a store over plain HTTP: GET /health, /ready and /metrics.

The server bounds the size of a request, its duration and the number of connections. A connection has one request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

REQUEST_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply with a page. `well` False makes its status 503."""

    well: bool
    content_type: str
    content: bytes


Page = Callable[[], Answer]


def json_answer(well: bool, shown: Mapping[str, Any]) -> Answer:
    return Answer(well, "application/json", json.dumps(shown).encode())


class HealthServer:
    """Serves `pages` by path. Each request renders its page again."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = dict(pages)
        self._server: asyncio.Server | None = None
        self._connections = 0

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
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request))
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # the client disconnected, was too slow, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        page = self._pages.get(path)
        if method not in (b"GET", b"HEAD") or page is None:
            served = ", ".join(sorted(self._pages))
            answer, status = json_answer(False, {"error": f"only GET {served} are served here"}), "404 Not Found"
        else:
            answer = page()
            status = "200 OK" if answer.well else "503 Service Unavailable"
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: {answer.content_type}\r\n"
            f"content-length: {len(answer.content)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else answer.content)
