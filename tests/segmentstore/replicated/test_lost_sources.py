"""The source of a takeover goes away in the middle of a question, over real sockets: the log is opened even so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from replica_socket_world import SocketWorld
from replica_sockets import DOWN, UP
from replicated_world import (
    LOG,
    WAIT_S,
    ReplicaNode,
    append,
    members,
    numbered,
    opened,
    payloads,
    replicated_world,
    until,
)

from headrace.codec.replica_messages import Read
from headrace.model.container_logs import without_lost_members
from headrace.model.errors import UnavailableError

pytestmark = pytest.mark.anyio

Happen = Callable[[SocketWorld, ReplicaNode], Awaitable[None]]


async def reset_link(world: SocketWorld, source: ReplicaNode) -> None:
    world.proxies[source.replica].tear()


async def restart(world: SocketWorld, source: ReplicaNode) -> None:
    await world.stop(source)
    await world.start(source.name, source.disk)


async def pause(world: SocketWorld, source: ReplicaNode) -> None:
    """Connections stay, and nothing arrives."""
    world.proxies[source.replica].cut(UP, DOWN)


async def destroy(world: SocketWorld, source: ReplicaNode) -> None:
    await world.destroy(source)


class LostQuestions:
    """Takes the first question to any replica, which is not answered."""

    def __init__(self, nodes: list[ReplicaNode], monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked: asyncio.Future[ReplicaNode] = asyncio.get_running_loop().create_future()
        for node in nodes:
            monkeypatch.setattr(node.sessions, "read", self._taker(node, node.sessions.read))

    async def first(self) -> ReplicaNode:
        """The node that was asked."""
        return await asyncio.wait_for(self._asked, WAIT_S)

    def _taker(self, node: ReplicaNode, read: Callable[[int, Read], None]) -> Callable[[int, Read], None]:
        def take(link: int, message: Read) -> None:
            if self._asked.done():
                read(link, message)
            else:
                self._asked.set_result(node)

        return take


@pytest.mark.parametrize("happen", [reset_link, restart, pause, destroy])
async def test_takeover_ends_without_its_source(happen: Happen, monkeypatch: pytest.MonkeyPatch):
    """Node d has nothing of the log. Before, it asked the same replica for ever."""
    async with replicated_world("abc", SocketWorld) as made:
        world = cast("SocketWorld", made)
        ledger = await opened(world, "a")
        await append(ledger, *numbered(0, 20))
        writer = world.nodes["a"].ledgers.owned[LOG].writer
        assert writer is not None
        # Two of the three copies go away: what only those two have would be lost.
        await until(lambda: len(writer.positions) == 3 and set(writer.positions.values()) == {19})
        await world.stop(world.nodes["a"])
        world.open_patience_s = WAIT_S
        await world.start("d")
        questions = LostQuestions([world.nodes[name] for name in "bc"], monkeypatch)
        opening = asyncio.create_task(opened(world, "d"))
        source = await questions.first()
        await happen(world, source)
        assert payloads(await asyncio.wait_for(opening, WAIT_S)) == numbered(0, 20)
        assert "d" in members(world)


async def test_takeover_that_copies_notices_an_accepted_loss(monkeypatch: pytest.MonkeyPatch):
    """All members end after they have answered. Before, the record was read only during the fencing."""
    async with replicated_world("abc", SocketWorld) as made:
        world = cast("SocketWorld", made)
        await append(await opened(world, "a"), *numbered(0, 20))
        await world.stop(world.nodes["a"])
        await world.start("d")
        questions = LostQuestions([world.nodes[name] for name in "bc"], monkeypatch)
        opening = asyncio.create_task(world.nodes["d"].ledgers.open(LOG, world.claim(LOG)))
        await questions.first()
        for name in "bc":
            await world.destroy(world.nodes[name])
        with pytest.raises(UnavailableError):
            await opening
        await world.start("e")
        owned = world.nodes["d"].ledgers.owned[LOG]
        await until(lambda: owned.blocked_by is not None)
        log, version = world.records.read(LOG)
        assert log is not None
        world.records.replace_unowned(LOG, without_lost_members(log, set(log.members)), version)
        await asyncio.wait_for(owned.recovered, WAIT_S)
        assert members(world) == {"d", "e"}
        assert owned.blocked_by is None
