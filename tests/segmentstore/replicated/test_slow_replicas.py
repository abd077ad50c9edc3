"""Replicas that answer slowly slow down the writers that wait for them, before the cache is full."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicated_world import append, opened, replicated_world, until

from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Ledger
from headrace.replication.bounds import WriterBounds
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.tiering.storage_limits import THROTTLE_DELAY_S_MAX, THROTTLE_FROM_FILL, Throttle

pytestmark = pytest.mark.anyio

ROOMY = LogSpace(0, 0, 1 << 40, 1 << 20)


class Fills:
    """Logs that hold nothing, with these fills of what waits for other stores."""

    def __init__(self, *fills: float) -> None:
        self.ledgers = [SimpleNamespace(held_bytes=0, unacknowledged_fill=fill, lag_fill=0.0) for fill in fills]
        self.pool = BlockPool(1 << 20, 64 << 10)
        room = LogRoom(lambda: ROOMY, lambda: cast("list[Ledger]", self.ledgers))
        self.throttle = Throttle(self.pool, room, self.appended(*range(len(fills))))

    def appended(self, *indexes: int) -> Callable[[], Collection[SegmentContainer]]:
        found = [SimpleNamespace(log=SimpleNamespace(ledger=self.ledgers[index])) for index in indexes]
        return lambda: cast("list[SegmentContainer]", found)

    def delays_s(self) -> list[float]:
        """For a connection to each container."""
        return [self.throttle.delay_s(0.0, self.appended(index)) for index in range(len(self.ledgers))]


def test_waiting_entries_slow_down_the_containers_that_have_them():
    fills = Fills(0.9, 0.001, 0.0)
    slow, quick, idle = fills.delays_s()
    assert 0 < slow < THROTTLE_DELAY_S_MAX
    assert (quick, idle) == (0, 0)
    assert fills.pool.untiered_bytes == 0
    assert fills.throttle.level == pytest.approx(0.901)


def test_the_bound_is_one_for_all_logs_of_a_process():
    fills = Fills(*[1 / 16] * 16)
    assert fills.delays_s() == [THROTTLE_DELAY_S_MAX] * 16
    assert all(fills.throttle.log_is_full(fills.appended(index)) for index in range(16))


def test_a_log_that_has_no_quorum_keeps_no_other_from_appending():
    fills = Fills(1.0, 0.2, 0.1, 0.1)
    assert [fills.throttle.delay_s(0.0, fills.appended(index)) > 0 for index in range(4)] == [True, True, False, False]
    assert not fills.throttle.log_is_full(fills.appended(2, 3))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_some_writer_is_slowed_down_whenever_too_much_waits(fills):
    delays = Fills(*fills).delays_s()
    assert (max(delays) > 0) == (sum(fills) > THROTTLE_FROM_FILL)


async def test_entries_that_no_quorum_has_fill_the_log():
    async with replicated_world() as world:
        world.writer_bounds = WriterBounds(silence_ms=60_000, pulse_ms=50, unacknowledged_bytes=1 << 20)
        for name in "abc":
            await world.stop(world.nodes[name])
        for name in "abc":
            await world.start(name)
        ledger = await opened(world, "a")
        await append(ledger, b"first")
        assert ledger.unacknowledged_fill == 0
        a, b, c = (world.nodes[name].replica for name in "abc")
        for peer in (b, c):
            world.network.hold(a, peer)
        done: list[Exception | None] = []
        for _ in range(10):
            ledger.append([bytes(100_000)], done.append)
        await until(lambda: world.nodes["a"].sessions.log(3).durable_end == 11)
        assert done == []
        assert ledger.unacknowledged_fill > THROTTLE_FROM_FILL
        for peer in (b, c):
            world.network.release(a, peer)
        await until(lambda: len(done) == 10)
        assert ledger.unacknowledged_fill == 0
