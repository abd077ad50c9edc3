"""A store watches the segments that have a scaling policy by rate, and says which are too hot or too cold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from store_world import WireClient, World

from headrace import wire
from headrace.adapters.scaling_report_senders import LoggedScalingReports
from headrace.model.names import transaction_segment_name
from headrace.model.rates import ScalingReport
from headrace.segmentstore.store import SegmentStore

pytestmark = pytest.mark.anyio

SEGMENT, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
WRITER = 3
EVENTS, KILOBYTES = wire.SCALE_TYPE_EVENTS_PER_SEC, wire.SCALE_TYPE_KBYTES_PER_SEC
TICK_S = 6
MINUTE_S = 60


class Load:
    """One writer on one segment, and the passing of time."""

    def __init__(self, running, client, segment=SEGMENT, writer=WRITER):
        self._running = running
        self._client = client
        self._segment = segment
        self._writer = writer
        self._number = 0

    async def create(self, scale_type, target):
        created = await self._client.call(wire.CreateSegment(1, self._segment, target, scale_type))
        assert created == wire.SegmentCreated(1, self._segment)
        await self._client.set_up(self._segment, self._writer)

    async def write(self, seconds, *, events, size=1000):
        """`events` and `size` bytes in each tick."""
        for _ in range(0, seconds, TICK_S):
            self._number += events
            await self._client.append(self._writer, self._number, bytes(size), count=events)
            self.rest(TICK_S)

    def rest(self, seconds):
        for _ in range(0, seconds, TICK_S):
            self._running.world.clock.advance(TICK_S)
            self._running.store.tick_rates()


@asynccontextmanager
async def loaded(world: World) -> AsyncIterator[tuple[Load, WireClient, SegmentStore]]:
    """A load on a running store."""
    async with world.running() as running:
        client = await running.connect()
        yield Load(running, client), client, running.store


def reported(world: World) -> list[tuple[str, str, int, bool]]:
    return [(report.segment, report.kind, report.splits, report.silent) for report in world.reports.reports]


async def test_a_segment_with_too_many_events_is_hot(world: World):
    async with loaded(world) as (load, _client, store):
        await load.create(EVENTS, 10)
        await load.write(10 * MINUTE_S, events=250)
        assert store.owner_of(SEGMENT).container.rates.hot_reports == 0
        await load.write(2 * MINUTE_S, events=250)

    assert reported(world) == [(SEGMENT, "hot", 4, False)]


async def test_a_segment_with_too_many_bytes_is_hot(world: World):
    async with loaded(world) as (load, _client, _store):
        await load.create(KILOBYTES, 2)
        await load.write(12 * MINUTE_S, events=1, size=32 * 1024)

    assert reported(world) == [(SEGMENT, "hot", 2, False)]


async def test_segment_with_few_events_is_cold_and_then_silent(world: World):
    async with loaded(world) as (load, _client, store):
        await load.create(EVENTS, 10)
        await load.write(22 * MINUTE_S, events=12)
        load.rest(19 * MINUTE_S)
        rates = store.owner_of(SEGMENT).container.rates
        assert (rates.cold_reports, len(rates)) == (1, 1)
        load.rest(7 * MINUTE_S)
        assert len(rates) == 0
        await load.write(MINUTE_S, events=600)
        assert len(rates) == 1, "it is watched again"

    assert reported(world) == [(SEGMENT, "cold", 0, False), (SEGMENT, "cold", 0, True)]


@pytest.mark.parametrize("end", ["sealed", "deleted", "fixed"])
async def test_what_has_no_policy_by_rate_is_not_watched(world: World, end):
    async with loaded(world) as (load, client, store):
        await load.create(EVENTS, 10)
        rates = store.owner_of(SEGMENT).container.rates
        assert len(rates) == 1
        match end:
            case "sealed":
                await client.call(wire.SealSegment(2, SEGMENT))
            case "deleted":
                await client.call(wire.DeleteSegment(2, SEGMENT))
            case "fixed":
                await client.call(wire.UpdateSegmentPolicy(2, SEGMENT, 0, wire.SCALE_TYPE_NONE))
                await load.write(TICK_S, events=1)
        assert len(rates) == 0
        load.rest(30 * MINUTE_S)

    assert reported(world) == []


async def test_a_new_target_counts_at_once_and_keeps_what_was_seen(world: World):
    async with loaded(world) as (load, client, _store):
        await load.create(EVENTS, 1000)
        await load.write(10 * MINUTE_S, events=250)
        await client.call(wire.UpdateSegmentPolicy(2, SEGMENT, 10, EVENTS))
        await load.write(2 * MINUTE_S, events=250)

    assert reported(world) == [(SEGMENT, "hot", 4, False)]


async def test_another_kind_of_rate_begins_anew(world: World):
    async with loaded(world) as (load, client, _store):
        await load.create(EVENTS, 1000)
        await load.write(10 * MINUTE_S, events=250, size=100_000)
        await client.call(wire.UpdateSegmentPolicy(2, SEGMENT, 1, KILOBYTES))
        await load.write(9 * MINUTE_S, events=250, size=100_000)

    assert reported(world) == []


async def test_transaction_counts_at_its_merge_by_share_of_a_tick(world: World):
    async with loaded(world) as (load, client, store):
        await load.create(EVENTS, 10)
        rates = store.owner_of(SEGMENT).container.rates
        transaction = transaction_segment_name(SEGMENT, 1)
        await client.call(wire.CreateSegment(1, transaction, 10, EVENTS))
        assert len(rates) == 1, "a transaction's own segment is not watched"
        await client.set_up(transaction, 8)
        await client.append(8, 120, b"x" * 120, count=120)
        load.rest(MINUTE_S)
        await client.call(wire.MergeSegments(3, SEGMENT, transaction))
        watched = store.owner_of(SEGMENT).container.metadata.segments[SEGMENT].watched
        assert watched.pending == 10
        load.rest(TICK_S)
        assert watched.pending == 0
        # The segment was created 66 s ago: twelve ticks of nothing, and ten events in the remaining 6 s.
        assert watched.rates.averages[0] == pytest.approx(10 / 6)


async def test_segments_of_an_earlier_life_are_watched_too(world: World):
    async with world.running() as running:
        await Load(running, await running.connect()).create(EVENTS, 10)
    async with world.running() as running:
        load = Load(running, await running.connect())
        load.rest(26 * MINUTE_S)
    assert [(report.segment, report.silent) for report in world.reports.reports] == [(SEGMENT, True)]


def test_reports_are_lines_that_can_be_searched(caplog):
    with caplog.at_level("INFO"):
        LoggedScalingReports().report(ScalingReport("a/b/0.#epoch.0", "hot", 5, splits=3))
        LoggedScalingReports().report(ScalingReport("a/b/0.#epoch.0", "cold", 6, silent=True))
    assert caplog.messages == [
        "event=segment_hot segment='a/b/0.#epoch.0' splits=3 at_ms=5",
        "event=segment_cold segment='a/b/0.#epoch.0' silent=True at_ms=6",
    ]
