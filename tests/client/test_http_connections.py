"""A `close` of the asynchronous client that is cancelled, at any of its turns, closes its HTTP connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx
import pytest

from headrace.client import AsyncHeadrace, closing

CONNECTIONS = 4
TURNS = range(1, 12)

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n" + b'{"scopes":[]}'


class Controller:
    """Answers when so many requests have come at the same time, and keeps connections open until the client ends."""

    def __init__(self) -> None:
        self.open = 0
        self._all_came = asyncio.Event()
        self._ended = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        await reader.readuntil(b"\r\n\r\n")
        if self.open == CONNECTIONS:
            self._all_came.set()
        await self._all_came.wait()
        writer.write(ANSWER)
        await reader.read()
        writer.close()
        async with self._ended:
            self.open -= 1
            self._ended.notify_all()

    async def until_none_is_open(self) -> None:
        async with self._ended:
            await self._ended.wait_for(lambda: not self.open)


async def _close_and_cancel(turns: int) -> None:
    controller = Controller()
    server = await asyncio.start_server(controller.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = AsyncHeadrace(f"http://127.0.0.1:{port}")
    await asyncio.gather(*(client.admin.list_scopes() for _ in range(CONNECTIONS)))
    assert controller.open == CONNECTIONS
    before = asyncio.all_tasks()
    end = asyncio.create_task(client.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    was_cancelled = end.cancel()
    with suppress(asyncio.CancelledError):
        await end
    assert end.cancelled() == was_cancelled
    await controller.until_none_is_open()
    await client.close()
    assert asyncio.all_tasks() - before == set()
    server.close()


@pytest.mark.parametrize("turns", TURNS)
def test_cancelled_close_ends_all_http_connections(turns: int) -> None:
    asyncio.run(_close_and_cancel(turns))


class SilentTransport(httpx.AsyncBaseTransport):
    """Does not end its close."""

    async def aclose(self) -> None:
        await asyncio.Event().wait()


def test_cancelled_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CANCELLED_S", 0.05)

    async def run() -> None:
        client = AsyncHeadrace("http://controller", transport=SilentTransport())
        end = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        end.cancel()
        await asyncio.wait({end})
        assert end.cancelled()

    asyncio.run(run())
