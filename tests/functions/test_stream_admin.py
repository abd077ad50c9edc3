"""The client's administration of streams against the real handlers: both sides mean the same by every body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from functions_in_memory import Call, FunctionWorld

from headrace.client.administration import admin as admin_module
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.http_api import HttpApi
from headrace.model.errors import IllegalStateError, InvalidRequestError, SealedError, TruncatedError
from headrace.model.stream_configuration import RetentionPolicy, RetentionType, ScalingPolicy

pytestmark = pytest.mark.anyio
NEW_LOW, NEW_HIGH = (1 << 32) + 2, (1 << 32) + 3


@pytest.fixture
async def admin(call: Call, world: FunctionWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncAdmin]:
    """An admin whose waiting processes what is queued."""

    def serve(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        answer = call(request.method, request.url.path, body, **dict(request.url.params))
        return httpx.Response(answer.status, json=answer.body) if answer.body else httpx.Response(answer.status)

    async def until(what: str, look: Callable[[], Awaitable[Any]], done: Callable[[Any], bool]) -> Any:
        while not done(found := await look()):
            world.work()
        return found

    monkeypatch.setattr(admin_module, "until", until)
    api = HttpApi("http://controller", transport=httpx.MockTransport(serve), retry_s=0.01)
    yield AsyncAdmin(api)
    await api.close()


async def _scaled(admin: AsyncAdmin, world: FunctionWorld) -> None:
    """s/t after segment 0, of 10 bytes, was split in two; segment 1 holds 20 bytes."""
    await admin.create_scope("s")
    await admin.create_stream("s", "t", tags=["a"])
    world.segment_stores.extend("s/t/0.#epoch.0", 10)
    world.segment_stores.extend("s/t/1.#epoch.0", 20)
    await admin.scale_stream("s", "t", seal=[0], ranges=[(0.0, 0.25), (0.25, 0.5)])


async def test_an_update(admin: AsyncAdmin, world: FunctionWorld):
    await _scaled(admin, world)
    retention = RetentionPolicy(RetentionType.LIMITED_DAYS, 2, 3)
    view = await admin.update_stream(
        "s",
        "t",
        scaling=ScalingPolicy.by_event_rate(5, 2, 2),
        retention=retention,
        tags=["b"],
        rollover_size_bytes=9,
    )
    assert (view.configuration_version, view.tags, view.retention) == (1, ("b",), retention)
    assert (view.scaling, view.rollover_size_bytes) == (ScalingPolicy.by_event_rate(5, 2, 2), 9)
    assert await admin.list_streams("s", tag="a") == []
    assert [summary.stream for summary in await admin.list_streams("s", tag="b", prefix="t")] == ["t"]
    accepted = await admin.update_stream("s", "t", scaling=ScalingPolicy.fixed(2), wait=False)
    assert (accepted.state, accepted.configuration_version) == ("UPDATING", 1)
    world.work()
    await admin.seal_stream("s", "t")
    with pytest.raises(SealedError):
        await admin.update_stream("s", "t", scaling=ScalingPolicy.fixed(2))


async def test_an_update_that_is_given_up_is_told(
    admin: AsyncAdmin, world: FunctionWorld, monkeypatch: pytest.MonkeyPatch
):
    await _scaled(admin, world)
    seen = await admin.get_stream("s", "t")

    async def given_up(*_: Any) -> Any:
        return seen

    monkeypatch.setattr(admin, "_state_after", given_up)
    with pytest.raises(IllegalStateError, match="rolled back"):
        await admin.update_stream("s", "t", scaling=ScalingPolicy.fixed(2))


async def test_a_truncation(admin: AsyncAdmin, world: FunctionWorld):
    await _scaled(admin, world)
    cut = {NEW_LOW: 0, NEW_HIGH: 0, 1: 7}
    assert await admin.is_stream_cut_valid("s", "t", cut)
    assert await admin.stream_cut_distance("s", "t", None, cut) == 17
    await admin.truncate_stream("s", "t", cut)
    assert (await admin.stream_cut("s", "t", at="head")).offsets == cut
    await admin.truncate_stream("s", "t", cut)
    assert await admin.stream_cut_distance("s", "t") == 13
    assert not await admin.is_stream_cut_valid("s", "t", {0: 0, 1: 0})
    with pytest.raises(TruncatedError):
        await admin.truncate_stream("s", "t", {0: 0, 1: 0})
    with pytest.raises(InvalidRequestError):
        await admin.truncate_stream("s", "t", {1: 0})


async def test_scaling_events(admin: AsyncAdmin, world: FunctionWorld):
    await _scaled(admin, world)
    (event,) = await admin.scaling_events("s", "t")
    assert (event.epoch, event.sealed_segments, event.splits, event.merges) == (1, (0,), 1, 0)
    assert [segment.segment_id for segment in event.new_segments] == [NEW_LOW, NEW_HIGH]
    assert await admin.scaling_events("s", "t", from_ms=event.time_ms + 1) == []
    assert await admin.scaling_events("s", "t", to_ms=event.time_ms - 1) == []


async def test_epoch_history(admin: AsyncAdmin, world: FunctionWorld):
    await _scaled(admin, world)
    page = await admin.epoch_history("s", "t", limit=1)
    (epoch,) = page.epochs
    assert epoch.epoch == 1
    assert [(segment.segment_id, segment.low, segment.high) for segment in epoch.replaced] == [(0, 0.0, 0.5)]
    assert epoch.replaced[0].length is not None
    assert [segment.segment_id for segment in epoch.created] == [NEW_LOW, NEW_HIGH]
    assert [segment.segment_id for segment in page.segments] == [NEW_LOW, NEW_HIGH, 1]
    assert page.next_before == 1
    first = await admin.epoch_history("s", "t", before=page.next_before)
    assert ([listed.epoch for listed in first.epochs], first.next_before) == ([0], None)
    assert [segment.segment_id for segment in first.epochs[0].created] == [0, 1]
    with pytest.raises(InvalidRequestError):
        await admin.epoch_history("s", "t", before=0)


async def test_a_scope_with_everything_in_it(admin: AsyncAdmin, world: FunctionWorld):
    await _scaled(admin, world)
    with pytest.raises(IllegalStateError):
        await admin.delete_scope("s")
    await admin.delete_scope("s", recursive=True)
    assert await admin.list_scopes() == []
    assert world.segment_stores.names() == []
    await admin.create_scope("s")
    await admin.delete_scope("s", recursive=True, wait=False)
    assert await admin.scope_exists("s")
