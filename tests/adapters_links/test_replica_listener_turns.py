"""A listener shares its loop: it leaves turns to others, however much its sockets have."""

from __future__ import annotations

import asyncio

import pytest
from recorded_links import PEER, entry
from replica_sockets import replica_ends

from headrace.adapters.tcp.replica_listener import MESSAGES_PER_TURN

pytestmark = pytest.mark.anyio


async def test_many_small_entries_leave_turns_of_the_loop_to_others():
    """Both loops may read all that a socket has in one turn."""
    async with replica_ends() as ends:
        await ends.connect()
        turns, received = 0, ends.host.received
        in_turn: dict[int, int] = {}

        def count(link, message):
            in_turn[turns] = in_turn.get(turns, 0) + 1
            received(link, message)

        ends.host.received = count
        for number in range(5_000):
            header, payload = entry(number, b"")
            ends.links.send_entry(PEER, header, [payload])
        while len(ends.host.entries) < 5_000:
            await asyncio.sleep(0)
            turns += 1
        assert max(in_turn.values()) <= 2 * MESSAGES_PER_TURN
        assert [ledger_entry.header.entry for ledger_entry in ends.host.entries] == list(range(5_000))
