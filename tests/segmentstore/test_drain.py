"""A store that is told to stop takes nothing more and answers what it took."""

from __future__ import annotations

import asyncio

import pytest
from store_world import World

from headrace import wire

pytestmark = pytest.mark.anyio

SEGMENT, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
WRITER = 5


class HeldLog:
    """The ledger of a container whose entries become durable when the test says so."""

    def __init__(self, container):
        self.pending = []
        self._ledger = container.log.ledger
        self._append = self._ledger.append
        self._ledger.append = self._hold

    def _hold(self, parts, done, released):
        self.pending.append(done)
        return self._append(parts, lambda _error: None, released)

    def release(self):
        self._ledger.append = self._append
        for done in self.pending:
            done(None)


async def test_what_was_accepted_is_answered_before_connections_end(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        container = running.store.owner_of(SEGMENT).container
        log = HeldLog(container)
        client.send(wire.AppendBlockEnd(WRITER, 3, b"abc", 1, 1, 9), wire.SealSegment(6, SEGMENT))
        await running.until(lambda: container.metadata.segments[SEGMENT].accepted.sealed and log.pending)
        draining = asyncio.ensure_future(running.listener.drain(100))
        await running.until(lambda: not running.listener.accepts)
        client.send(wire.AppendBlockEnd(WRITER, 3, b"def", 1, 2, 9), wire.CreateSegment(7, OTHER, 0, 0))
        await client.drain_to_server()
        assert not draining.done()
        log.release()
        await draining
        replies = [await client.receive(), await client.receive()]
        await running.listener.stop()
        assert replies == [
            wire.DataAppended(WRITER, 1, wire.NO_EVENT_NUMBER, 9, 3),
            wire.SegmentSealed(6, SEGMENT),
        ]
        assert await client.closed()
        assert OTHER not in running.store.owner_of(OTHER).container.metadata.segments
        assert container.metadata.segments[SEGMENT].accepted.length == 3


async def test_hanging_log_delays_shutdown_only_until_the_deadline(world: World, caplog):
    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, WRITER)
        container = running.store.owner_of(SEGMENT).container
        log = HeldLog(container)
        client.send(wire.AppendBlockEnd(WRITER, 3, b"abc", 1, 1, 9), wire.SealSegment(6, SEGMENT))
        await running.until(lambda: container.metadata.segments[SEGMENT].accepted.sealed and log.pending)
        await running.listener.drain(0.01)
        await running.listener.stop()
        assert await client.closed()
    assert "event=drain_incomplete connections=1" in caplog.text
