"""The network of a client: which requests name it, and where it comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from headrace.api.plans import RangeToPlan
from headrace.client import AsyncHeadrace, InvalidRequestError
from headrace.client.administration.admin import AsyncAdmin

ENDPOINT = {"host": "h", "port": 1, "zone": "z", "container": 0, "epoch": 0}
Call = Callable[[AsyncAdmin], Coroutine[Any, Any, Any]]
CALLS: list[Call] = [
    lambda admin: admin.endpoint("s", "t", 0),
    lambda admin: admin.tables.endpoint("s", "t", 0),
    lambda admin: admin.watermarks.mark_segment_endpoint("s", "t"),
    lambda admin: admin.reader_groups.state_segment_endpoint("s", "g", 0),
    lambda admin: admin.range_plans("s", "t", [RangeToPlan(0, 0, 1)]),
]


class Controller:
    """Answers each request, and keeps its query."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.queries.append(request.url.query.decode())
        return httpx.Response(200, json={"ranges": []} if "plans" in request.url.path else ENDPOINT)


@pytest.mark.parametrize(
    ("given", "variable", "query"),
    [
        (None, None, ""),
        ("vpc", None, ""),
        ("external", None, "network=external"),
        (None, "external", "network=external"),
        ("vpc", "external", ""),
    ],
)
def test_requests_for_addresses_name_the_network(
    monkeypatch: pytest.MonkeyPatch, given: Any, variable: str | None, query: str
) -> None:
    monkeypatch.delenv("HEADRACE_NETWORK", raising=False)
    if variable is not None:
        monkeypatch.setenv("HEADRACE_NETWORK", variable)
    controller = Controller()
    transport = httpx.MockTransport(controller.answer)

    async def ask() -> None:
        async with AsyncHeadrace("http://controller", transport=transport, network=given) as headrace:
            for call in CALLS:
                await call(headrace.admin)

    asyncio.run(ask())
    assert controller.queries == [query] * len(CALLS)


def test_an_unknown_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NETWORK", "moon")
    with pytest.raises(InvalidRequestError, match="HEADRACE_NETWORK is 'moon', expected vpc or external"):
        AsyncHeadrace("http://controller")
