"""`admin.retention` and `admin.subscribers`: what they send, and what they make of the answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from headrace.api.retention import SubscriberView
from headrace.client.administration.retention_admin import (
    AsyncRetentionAdmin,
    AsyncSubscribersAdmin,
)
from headrace.client.http_api import HttpApi
from headrace.model.errors import CorruptError
from headrace.model.stream_configuration import RetentionPolicy, RetentionType
from headrace.model.stream_cuts import StreamCut

GROUP = {"subscriber": "s/g", "generation": 2, "streamCut": {"0": 5, "4294967298": 0}, "updated": 7}
VIEW = SubscriberView("s/g", 2, {0: 5, 4294967298: 0}, 7)
pytestmark = pytest.mark.anyio

DESCRIPTION = {
    "scopeName": "s",
    "streamName": "t",
    "retentionPolicy": {"type": "LIMITED_DAYS", "value": 1, "maxValue": 3},
    "time": 100,
    "oldestEventAfter": 10,
    "keptBytes": 1_000,
    "retentionSet": 2,
    "oldestCutTime": 20,
    "newestCutTime": 90,
    "subscribers": 1,
    "nextCutTime": 110,
    "nextTruncation": {
        "case": "within limits",
        "why": "because",
        "bytes": 30,
        "streamCut": {"scopeName": "s", "streamName": "t", "cut": {"0": 5}, "text": "x"},
    },
}


async def _ask(answers: list[Any], call: Callable[[HttpApi], Awaitable[Any]]) -> tuple[Any, list[tuple[str, str, Any]]]:
    """What the call returns, and the requests that it sent."""
    sent: list[tuple[str, str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.method, request.url.raw_path.decode(), json.loads(request.content or b"null")))
        found = answers[len(sent) - 1]
        return httpx.Response(204) if found is None else httpx.Response(200, json=found)

    api = HttpApi("http://controller", transport=httpx.MockTransport(answer))
    try:
        return await call(api), sent
    finally:
        await api.close()


async def test_describe():
    found, sent = await _ask([DESCRIPTION], lambda api: AsyncRetentionAdmin(api).describe("s", "t"))
    assert sent == [("GET", "/v1/scopes/s/streams/t/retention", None)]
    assert found.policy == RetentionPolicy(RetentionType.LIMITED_DAYS, 1, 3)
    assert (found.kept_bytes, found.oldest_event_ms, found.next_cut_time_ms) == (1_000, 10, 110)
    assert (found.next_bytes, found.case, found.next_cut) == (30, "within limits", StreamCut.of("s", "t", {0: 5}))


async def test_describe_without_a_policy():
    following = {**DESCRIPTION["nextTruncation"], "streamCut": None}  # type: ignore[dict-item]
    nothing = dict.fromkeys(("retentionPolicy", "oldestCutTime", "newestCutTime", "nextCutTime"))
    answer = {**DESCRIPTION, **nothing, "nextTruncation": following}
    found, _ = await _ask([answer], lambda api: AsyncRetentionAdmin(api).describe("s", "t"))
    assert (found.policy, found.next_cut, found.oldest_cut_ms, found.next_cut_time_ms) == (None, None, None, None)


async def test_an_answer_that_is_none_is_corrupt():
    with pytest.raises(CorruptError):
        await _ask([{}], lambda api: AsyncRetentionAdmin(api).describe("s", "t"))


async def test_lists_are_read_to_their_end():
    pages = [{"subscribers": [GROUP], "continuationToken": "s/g"}, {"subscribers": [GROUP], "continuationToken": None}]
    found, sent = await _ask(pages, lambda api: AsyncSubscribersAdmin(api).list("s", "t"))
    assert found == [VIEW, VIEW]
    assert [path for _, path, _ in sent] == [
        "/v1/scopes/s/streams/t/subscribers?limit=1000",
        "/v1/scopes/s/streams/t/subscribers?limit=1000&continuationToken=s%2Fg",
    ]


Call = Callable[[AsyncSubscribersAdmin], Awaitable[SubscriberView]]
PATH = "/v1/scopes/s/streams/t/subscribers/s%2Fg"


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        (lambda admin: admin.get("s", "t", "s/g"), ("GET", PATH, None)),
        (lambda admin: admin.register("s", "t", "s/g"), ("PUT", PATH, {"generation": 0, "streamCut": None})),
        (
            lambda admin: admin.register("s", "t", "s/g", generation=2, start=StreamCut.of("s", "t", {0: 5})),
            ("PUT", PATH, {"generation": 2, "streamCut": {"0": 5}}),
        ),
        (
            lambda admin: admin.publish("s", "t", "s/g", {0: 5, 1: -1}, generation=2),
            ("PUT", f"{PATH}/position", {"generation": 2, "streamCut": {"0": 5, "1": -1}}),
        ),
    ],
)
async def test_what_is_sent(call: Call, sent: tuple[str, str, Any]):
    found, requests = await _ask([GROUP], lambda api: call(AsyncSubscribersAdmin(api)))
    assert (found, requests) == (VIEW, [sent])


@pytest.mark.parametrize(("generation", "query"), [(None, ""), (0, "?generation=0"), (3, "?generation=3")])
async def test_unregister(generation: int | None, query: str):
    found, sent = await _ask(
        [None], lambda api: AsyncSubscribersAdmin(api).unregister("s", "t", "s/g", generation=generation)
    )
    assert (found, sent) == (None, [("DELETE", f"{PATH}{query}", None)])
