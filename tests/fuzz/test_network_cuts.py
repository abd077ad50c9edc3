"""A relay passes everything on, nothing in a direction that is cut, and what it kept back once that is healed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from fuzz.network_cuts import AWS, RELAY_HOST, NetworkCuts, network_cuts

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
SILENT_S = 0.3
"""Far longer than a relay takes."""


class Ends(NamedTuple):
    """Both ends of a relayed connection."""

    store: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    aws: tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def cuts() -> Iterator[NetworkCuts]:
    with network_cuts() as cuts:
        yield cuts


@pytest.fixture
async def ends(cuts: NetworkCuts) -> AsyncIterator[Ends]:
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), HOST, 0)
    port = cuts.to_aws("a", HOST, server.sockets[0].getsockname()[1])
    ends = Ends(await asyncio.open_connection(RELAY_HOST, port), await accepted.get())
    yield ends
    for _, writer in ends:
        writer.close()
    server.close()


async def test_both_directions_pass(ends: Ends):
    ends.store[1].write(b"request")
    assert await ends.aws[0].readexactly(7) == b"request"
    ends.aws[1].write(b"reply")
    assert await ends.store[0].readexactly(5) == b"reply"


async def test_one_direction_is_cut_and_healed(cuts: NetworkCuts, ends: Ends):
    cuts.cut((AWS, "a"))
    ends.store[1].write(b"request")
    assert await ends.aws[0].readexactly(7) == b"request"
    ends.aws[1].write(b"reply")
    reply = asyncio.ensure_future(ends.store[0].readexactly(5))
    await asyncio.sleep(SILENT_S)
    assert not reply.done()
    cuts.heal()
    assert await reply == b"reply"


async def test_a_cut_hides_that_an_end_was_closed(cuts: NetworkCuts, ends: Ends):
    cuts.cut(("a", AWS))
    ends.store[1].close()
    end = asyncio.ensure_future(ends.aws[0].read())
    await asyncio.sleep(SILENT_S)
    assert not end.done()
    cuts.heal()
    assert await end == b""
