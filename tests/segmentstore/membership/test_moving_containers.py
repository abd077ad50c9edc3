"""A writer that is set up while its container moves waits for the end of the move.

Pravega's Rust client panics if the first two set-ups of a writer are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from cluster_members import CONTAINERS, SEGMENT, WRITER
from segment_writes import created_segment
from store_world import WAIT_S, RunningStore, WireClient, World

from headrace import wire
from headrace.model.containers import OpeningStep
from headrace.model.errors import CorruptError
from headrace.model.names import container_of_segment
from headrace.segmentstore import store
from headrace.segmentstore.connections import append_processor
from headrace.segmentstore.owned_container import ContainerOpening

pytestmark = pytest.mark.anyio

CONTAINER = container_of_segment(SEGMENT, CONTAINERS)
WRONG_HOST = wire.WrongHost(1, SEGMENT)


@pytest.fixture
async def running(world: World) -> AsyncIterator[RunningStore]:
    """A store that does not serve the container of the segment, which exists and has one event."""
    async with world.running() as before:
        client = await created_segment(before, SEGMENT, writer=WRITER)
        await client.append(WRITER, 4, b"kept")
    others = tuple(each for each in range(CONTAINERS) if each != CONTAINER)
    async with replace(world, opens=others).running() as running:
        yield running


def begin(running: RunningStore) -> ContainerOpening:
    opening = running.store.begin_opening(CONTAINER)
    opening.claimed(running.world.claim(CONTAINER))
    return opening


async def finish(running: RunningStore, opening: ContainerOpening) -> None:
    while opening.progress.step is not OpeningStep.CONFIRM:
        await opening.advance()
    running.store.serve(opening)


async def ask(client: WireClient, count: int = 1) -> None:
    """Send set-ups that are not answered now: the connection answers a later command first."""
    client.send(*(wire.SetupAppend(1, WRITER + each, SEGMENT) for each in range(count)), wire.KeepAlive())
    assert await client.receive() == wire.KeepAlive()


async def test_set_up_waits_until_the_container_is_open(running: RunningStore):
    opening, client = begin(running), await running.connect()
    await ask(client)
    await finish(running, opening)
    assert await client.receive() == wire.AppendSetup(1, SEGMENT, WRITER, 4)
    assert (await client.append(WRITER, 5, b"more")).current_segment_write_offset == len(b"keptmore")


async def test_newest_of_two_waiting_set_ups_is_answered(running: RunningStore):
    opening, client = begin(running), await running.connect()
    await ask(client)
    client.send(wire.SetupAppend(2, WRITER, SEGMENT))
    await finish(running, opening)
    assert await client.receive() == wire.AppendSetup(2, SEGMENT, WRITER, 4)


async def test_opening_that_ends_in_vain_answers_wrong_host(running: RunningStore, monkeypatch):
    monkeypatch.setattr(store, "LEFT_S", 0.001)
    opening, client = begin(running), await running.connect()
    await ask(client)
    running.store.cancel_opening(opening)
    assert await client.receive() == WRONG_HOST
    await running.until(lambda: not running.store.is_moving(SEGMENT))
    assert await client.call(wire.SetupAppend(1, WRITER, SEGMENT)) == WRONG_HOST


async def test_wait_for_an_opening_is_bounded(running: RunningStore, monkeypatch):
    monkeypatch.setattr(store, "MOVE_WAIT_S", 0.01)
    begin(running)
    assert await (await running.connect()).call(wire.SetupAppend(1, WRITER, SEGMENT)) == WRONG_HOST


async def test_no_request_waits_for_a_damaged_container(running: RunningStore):
    opening, client = begin(running), await running.connect()
    await opening.failed(CorruptError("damaged"))
    assert await client.call(wire.SetupAppend(1, WRITER, SEGMENT)) == WRONG_HOST


async def test_wait_ends_when_the_container_turns_out_to_be_damaged(running: RunningStore, monkeypatch):
    monkeypatch.setattr(store, "MOVE_WAIT_S", 1e6)
    opening, client = begin(running), await running.connect()
    await ask(client)
    await running.store.opening_failed(opening, CorruptError("damaged"))
    assert await client.receive() == WRONG_HOST


async def test_container_of_another_store_is_not_waited_for(running: RunningStore):
    assert await (await running.connect()).call(wire.SetupAppend(1, WRITER, SEGMENT)) == WRONG_HOST


async def test_waiting_set_ups_of_a_connection_are_bounded(running: RunningStore, monkeypatch):
    monkeypatch.setattr(append_processor, "WAITING_SET_UPS_MAX", 2)
    opening, client = begin(running), await running.connect()
    await ask(client, 2)
    assert await client.call(wire.SetupAppend(9, WRITER + 2, SEGMENT)) == wire.WrongHost(9, SEGMENT)
    await ask(await running.connect())  # of another connection
    await finish(running, opening)
    assert {(await client.receive()).writer_id for _ in range(2)} == {WRITER, WRITER + 1}
    assert isinstance(await client.call(wire.SetupAppend(9, WRITER + 2, SEGMENT)), wire.AppendSetup)


async def test_graceful_shutdown_does_not_wait_for_openings(running: RunningStore):
    begin(running)
    client = await running.connect()
    await ask(client)
    await asyncio.wait_for(running.listener.drain(1e6), WAIT_S)
    assert await client.receive() == WRONG_HOST


async def test_closed_connection_waits_for_nothing(running: RunningStore):
    opening, client = begin(running), await running.connect()
    await ask(client)
    (connection,) = running.listener._connections
    client.close()
    await running.until(lambda: not running.listener._connections)
    assert not connection.session._tasks
    await finish(running, opening)


async def test_set_up_during_a_hand_over_is_answered_after_it(world: World, monkeypatch):
    monkeypatch.setattr(store, "LEFT_S", 0.001)
    honest, asked, goes_on = world.chunks.put, asyncio.Event(), asyncio.Event()

    async def slow(name, parts):
        if CONTAINER not in running.store.owned:
            asked.set()
            await goes_on.wait()
        return await honest(name, parts)

    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"one", writer=WRITER)
        world.chunks.put = slow
        handing_over = asyncio.ensure_future(running.store.hand_over(CONTAINER, 1e6))
        await asked.wait()
        await ask(client)
        goes_on.set()
        assert await handing_over
        assert await client.receive() == WRONG_HOST


async def test_set_up_waits_until_the_next_owner_has_claimed(world: World, monkeypatch):
    monkeypatch.setattr(store, "LEFT_S", 1e6)
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"one", writer=WRITER)
        assert await running.store.hand_over(CONTAINER, 1e6)
        await ask(client)
        assert running.store.is_moving(SEGMENT)
        await finish(running, begin(running))  # it comes back
        assert isinstance(await client.receive(), wire.AppendSetup)
        assert not running.store.is_moving(SEGMENT)
