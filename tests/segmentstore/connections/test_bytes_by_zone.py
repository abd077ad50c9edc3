"""A store counts what it sends to clients by the zone of their address."""

from __future__ import annotations

import pytest
from store_world import World

from headrace import wire
from headrace.zones import UNKNOWN_ZONE, ZoneNetworks

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"


@pytest.mark.parametrize(
    ("networks", "zone"), [("use1-az2=127.0.0.0/8", "use1-az2"), ("use1-az2=10.0.0.0/8", UNKNOWN_ZONE)]
)
async def test_what_is_sent_counts_for_the_zone_of_the_peer(world: World, networks: str, zone: str) -> None:
    world.networks = ZoneNetworks.parse(networks)
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, 7)
        await client.append(7, 1, b"x" * 100_000)
        sent = running.store.metrics.sent_bytes
        before = sent[zone]
        read = await client.call(wire.ReadSegment(SEGMENT, 0, 100_000, request_id=1))
        assert isinstance(read, wire.SegmentRead)
        assert len(read.data) == 100_000
        assert 100_000 < sent[zone] - before < 101_000
        assert set(sent) == {zone}
