"""When replicas are dialed: a replica that cannot be reached is dialed again, but less and less often."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from recorded_links import OWNER, PEER, RecordingEvents, open_message
from replica_sockets import DOWN, PATIENT, identity, replica_ends

from headrace.adapters.tcp.replica_links import TcpReplicaLinks
from headrace.adapters.tcp.replica_protocol import LinkTimes
from headrace.model.container_logs import ReplicaId
from headrace.model.replica_placement import ReplicaAddress

pytestmark = pytest.mark.anyio


async def test_a_host_name_that_cannot_be_looked_up_is_dialed_again():
    """Python refuses it with a UnicodeError, which is no OSError."""
    async with replica_ends() as ends:
        good = ends.addresses[PEER]
        ends.addresses[PEER] = ReplicaAddress("a..b", 1)
        ends.links.send(PEER, open_message())
        await ends.events.until(lambda: ends.events.lost == [PEER])
        ends.addresses[PEER] = good
        await ends.connect()


async def test_closing_while_dialing_leaves_nothing():
    async with replica_ends() as ends:
        ends.proxy.cut(DOWN)
        ends.links.send(PEER, open_message())
        while not ends.proxy.connections:
            await asyncio.sleep(0)
        await ends.links.close()
        assert ends.events.lost == []


class Dialer:
    """Links that dial an address that is not known, so that each dial fails."""

    def __init__(self, times: LinkTimes) -> None:
        self.dialed_s: list[float] = []
        self.events = RecordingEvents()
        self.links = TcpReplicaLinks(identity(OWNER), self._address, times=times)
        self.links.start(self.events)

    def _address(self, _replica: ReplicaId) -> None:
        self.dialed_s.append(asyncio.get_running_loop().time())

    async def fail(self, times: int) -> None:
        for number in range(len(self.dialed_s) + 1, len(self.dialed_s) + times + 1):
            self.links.send(PEER, open_message(number))
            await self.events.until(lambda number=number: len(self.events.lost) == number)


async def test_dials_that_fail_become_rarer():
    dialer = Dialer(replace(PATIENT, redial_first_s=0.02, redial_max_s=0.08))
    await dialer.fail(5)
    waits = [round(after - before, 3) for before, after in pairwise(dialer.dialed_s)]  # uvloop's clock: whole ms
    assert all(wait >= least for wait, least in zip(waits, (0.02, 0.04, 0.08, 0.08), strict=True)), waits
    await dialer.links.close()


async def test_no_dial_waits_after_one_that_succeeded():
    async with replica_ends(replace(PATIENT, redial_first_s=0.01, redial_max_s=60)) as ends:
        good = ends.addresses.pop(PEER)
        ends.links.send(PEER, open_message())
        await ends.events.until(lambda: ends.events.lost == [PEER])
        ends.addresses[PEER] = good
        await ends.connect(2)
        assert ends.links._peers[PEER].redial_s == 0
        del ends.addresses[PEER]
        ends.proxy.tear()
        await ends.events.until(lambda: ends.events.lost == [PEER] * 2)
        ends.links.send(PEER, open_message(3))
        await asyncio.wait_for(ends.events.until(lambda: ends.events.lost == [PEER] * 3), 30)


async def test_closing_ends_the_wait_for_a_dial():
    before = asyncio.all_tasks()
    dialer = Dialer(replace(PATIENT, redial_first_s=60, redial_max_s=60))
    await dialer.fail(1)
    dialer.links.send(PEER, open_message(2))
    await asyncio.sleep(0.05)
    await dialer.links.close()
    assert len(dialer.dialed_s) == 1
    assert asyncio.all_tasks() == before
