"""What catching up may take of a process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from ledger_writers import OWN, B, C, ack, open_with, writer
from ledger_writers import append as append_entries
from replicated_world import append, opened, payloads, replicated_world

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Ledger
from headrace.replication.bounds import CATCH_UP_BYTES_PER_S, CATCH_UP_WINDOW_BYTES, CATCH_UPS_MAX
from headrace.replication.member_states import (
    CATCH_UP_PER_APPENDED,
    LAG_FILL_FROM,
    LAG_FILL_MAX,
    LAG_PATIENCE_S,
    LAG_RAMP_S,
    MemberState,
)
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.log.replicated.shared_log_resources import CatchUps, LaggingCopies
from headrace.segmentstore.tiering.storage_limits import THROTTLE_DELAY_S_MAX, throttle_delay_s

pytestmark = pytest.mark.anyio


async def test_takeover_does_not_wait_for_bulk_copies():
    """They hold their slots for as long as the rate of all of them says."""
    async with replicated_world() as world:
        disk = world.nodes["c"].disk
        await world.stop(world.nodes["c"])
        await append(await opened(world, "a"), b"one")
        await world.start("c", disk)
        world.network.cut(world.nodes["a"].replica, world.nodes["c"].replica)
        bulk = world.nodes["b"].ledgers._shared.catch_ups
        for _ in range(CATCH_UPS_MAX):
            await bulk.slots.acquire()
        await world.destroy(world.nodes["a"])
        assert payloads(await opened(world, "b")) == [b"one"]


async def test_all_members_share_one_rate():
    clock = ManualClock()
    catch_ups = CatchUps(clock)
    assert [catch_ups.delay_s(CATCH_UP_BYTES_PER_S // 2) for _ in range(3)] == [0.5, 1.0, 1.5]
    clock.advance(10_000)
    assert catch_ups.delay_s(CATCH_UP_BYTES_PER_S // 4) == 0.25, "what was not used is no credit"


@pytest.mark.parametrize("members", [1, 2])
async def test_members_come_back_while_much_is_appended(members: int):
    """More than CATCH_UP_BYTES_PER_S is appended: at that rate no member would ever catch up."""
    clock = ManualClock()
    catch_ups = CatchUps(clock)
    per_ms = 3 * CATCH_UP_BYTES_PER_S // 2000
    lacking, next_ms = [members * 500 << 20], 0.0
    for now_ms in range(60_000):
        clock.advance(1)
        catch_ups.appended(per_ms)
        lacking.append(lacking[-1] + members * per_ms)
        while next_ms <= now_ms and lacking[-1] > 0:
            lacking[-1] -= CATCH_UP_WINDOW_BYTES
            next_ms = now_ms + 1000 * catch_ups.delay_s(CATCH_UP_WINDOW_BYTES)
    assert min(lacking) <= 0
    assert max(lacking[-1000:]) < members * CATCH_UP_WINDOW_BYTES


async def test_rate_follows_what_is_appended():
    clock = ManualClock()
    catch_ups = CatchUps(clock)
    catch_ups.appended(4 * CATCH_UP_BYTES_PER_S)
    clock.advance(2_000)
    assert catch_ups.delay_s(CATCH_UP_BYTES_PER_S) == pytest.approx(1 / (2 * CATCH_UP_PER_APPENDED))
    clock.advance(1_000)
    assert catch_ups.delay_s(CATCH_UP_BYTES_PER_S) == pytest.approx(1.0), "nothing was appended since"


def test_a_copy_that_lags_never_stops_its_writers():
    assert throttle_delay_s(LAG_FILL_FROM) == 0.0 < throttle_delay_s(LAG_FILL_MAX) < THROTTLE_DELAY_S_MAX


def test_writers_of_a_log_that_lacks_a_copy_slow_down(caplog: pytest.LogCaptureFixture):
    clock, made = ManualClock(), writer(streaming=(OWN, B))
    append_entries(made, 5)
    ack(made, OWN, 14)
    open_with(made, C, 10)
    assert made.member_states()[C] is MemberState.CATCHING_UP
    lagging = LaggingCopies(made, clock)
    assert lagging.fill() == 0.0
    clock.advance(int(1000 * LAG_PATIENCE_S) - 1)
    assert lagging.fill() == 0.0
    clock.advance(int(500 * LAG_RAMP_S) + 1)
    assert LAG_FILL_FROM < lagging.fill() < LAG_FILL_MAX
    assert "event=log_lacks_copy container=0 slowed=True" in caplog.text
    made.sent(C, made.session_of(C), 14)
    assert made.member_states()[C] is MemberState.STREAMING
    assert lagging.fill() == 0.0
    assert "event=log_lacks_copy container=0 slowed=False" in caplog.text


def test_a_copy_that_lags_again_has_its_patience_again():
    clock, made = ManualClock(), writer(streaming=(OWN, B))
    append_entries(made, 5)
    ack(made, OWN, 14)
    open_with(made, C, 10)
    lagging = LaggingCopies(made, clock)
    assert lagging.fill() == 0.0
    made.link_lost(C)
    assert lagging.fill() == 0.0
    clock.advance(int(1000 * LAG_PATIENCE_S) + 1)
    made.tick(60_000)
    open_with(made, C, 10)
    assert made.member_states()[C] is MemberState.CATCHING_UP
    assert lagging.fill() == 0.0


def test_throttle_sees_a_copy_that_lags():
    ledger = SimpleNamespace(held_bytes=0, unacknowledged_fill=0.0, lag_fill=LAG_FILL_MAX)
    room = LogRoom(lambda: LogSpace(0, 0, 1 << 40, 1 << 20), lambda: cast("list[Ledger]", [ledger]))
    room.look(0.0)
    assert room.greatest_fill == LAG_FILL_MAX
    assert not room.refuses(cast("Ledger", ledger))
