"""Lines about logs that fall behind, which the alarms of a deployment count."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from store_world import World

from headrace.model.cluster import FLUSH_LAG_S_MAX
from headrace.replication.bounds import LAG_BYTES_MAX
from headrace.segmentstore.metrics import LATENCY_BOUNDS_S, Histogram
from segmentstore_fargate.log_watch import ACKNOWLEDGE_S_MAX, LogWatch, log_watch

pytestmark = pytest.mark.anyio


@dataclass
class Logs:
    """What a process would tell of its logs, and the events that are logged about it."""

    caplog: pytest.LogCaptureFixture
    lacking: dict[int, int] = field(default_factory=dict)
    ages_s: dict[int, float] = field(default_factory=dict)
    seconds: list[Histogram] = field(default_factory=lambda: [Histogram(LATENCY_BOUNDS_S) for _ in range(2)])

    def __post_init__(self) -> None:
        self._watch = LogWatch(lambda: self.lacking, lambda: self.seconds, lambda: self.ages_s)

    def lines(self) -> list[str]:
        self.caplog.clear()
        self._watch.check()
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Logs:
    return Logs(caplog)


def test_a_replica_that_lags_is_reported_at_each_check(logs: Logs):
    logs.lacking = {1: LAG_BYTES_MAX, 2: LAG_BYTES_MAX + 1}
    assert logs.lines() == logs.lines() == [f"event=replica_lags container=2 bytes={LAG_BYTES_MAX + 1}"]
    logs.lacking[2] = 0
    assert logs.lines() == []


def test_acknowledgements_are_judged_since_the_last_check(logs: Logs):
    assert logs.lines() == []
    for number in range(100):
        logs.seconds[number % 2].record(ACKNOWLEDGE_S_MAX)
    logs.seconds[1].record(2 * ACKNOWLEDGE_S_MAX)
    assert logs.lines() == [], "one of 101 is within the percentile"
    for _ in range(98):
        logs.seconds[0].record(ACKNOWLEDGE_S_MAX)
    for histogram in logs.seconds:
        histogram.record(2 * ACKNOWLEDGE_S_MAX)
    assert logs.lines() == ["event=acknowledgements_slow slow=2 count=100"]
    assert logs.lines() == []


def test_data_that_does_not_reach_tier_2_is_reported(logs: Logs):
    logs.ages_s = {0: FLUSH_LAG_S_MAX, 3: FLUSH_LAG_S_MAX + 1}
    assert logs.lines() == ["event=untiered_data_old container=3 age_s=61"]


async def test_a_store_with_one_copy_watches_its_data(make_world: type[World], caplog: pytest.LogCaptureFixture):
    world = make_world(container_count=1)
    segment = "scope/stream/0.#epoch.0"
    async with world.running() as running:
        client = await running.connect()
        await client.create(segment)
        await client.set_up(segment, 5)
        await running.store.owned[0].writer.stop()
        await client.append(5, 1, b"data")
        watch = log_watch(running.store, None)
        watch.check()
        assert "untiered_data_old" not in caplog.text
        world.clock.advance(FLUSH_LAG_S_MAX + 1)
        watch.check()
        assert "event=untiered_data_old container=0 age_s=61" in caplog.text
        running.store.owned[0].writer.start()
