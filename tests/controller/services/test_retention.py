"""What retention says of a stream, and what all its calls and ticks cost."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from headrace import topology
from headrace.controller.services.retention import NO_POLICY, NOTHING_YET, RetentionService
from headrace.controller.services.subscribers import SubscriberService
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.retention import WORDS, RetentionCase
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, StreamConfiguration

PERIOD_MS = 1_000
READ, QUERY, WRITE, TRANSACTION, SEND = "read", "query", "write", "transaction", "send"
INFOS = "segment store segment_infos"


class Told:
    """A world with retention, and what it says of stream `t`."""

    def __init__(self, world: StreamWorld) -> None:
        self.world = world
        self.service = RetentionService(world.store, world.segment_stores, world.clock)
        self.subscribers = SubscriberService(world.store, world.clock)
        self.ticks = RetentionTicks(world.store, world.segment_stores, world.clock, world.accept_truncation, PERIOD_MS)

    def describe(self) -> Any:
        return self.service.describe("s", "t")

    def write(self, *lengths: int) -> None:
        """Each followed by a round of ticks."""
        for length in lengths:
            self.world.append(0, length)
            self.round()

    def round(self) -> None:
        self.world.clock.advance(PERIOD_MS)
        for bucket in range(topology.BUCKET_COUNT):
            self.ticks.run(bucket)
        self.world.drain()

    def cost_of_a_round(self) -> dict[str, int]:
        """Of the ticks alone, without those buckets in which nothing is due."""
        self.world.clock.advance(PERIOD_MS)
        self.world.calls.counts.clear()
        for bucket in range(topology.BUCKET_COUNT):
            self.ticks.run(bucket)
        counts = dict(self.world.calls.counts)
        counts[QUERY] -= topology.BUCKET_COUNT - 1
        return counts


@pytest.fixture
def told(world: StreamWorld) -> Told:
    return Told(world)


def test_without_a_policy_everything_stays(world: StreamWorld, told: Told):
    world.create(segments=1)
    world.append(0, 70)
    view = told.describe()
    assert (view.policy, view.kept_bytes, view.next_cut_time_ms, view.why) == (None, 70, None, NO_POLICY)
    assert view.oldest_event_ms == world.records.get("s", "t").stream.creation_time_ms


def test_a_stream_that_is_not_there_or_not_ready(world: StreamWorld, told: Told):
    with pytest.raises(NotFoundError):
        told.describe()
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with pytest.raises(UnavailableError) as error:
        told.describe()
    assert error.value.specific_code == "stream_not_ready"


def test_the_whole_picture(world: StreamWorld, told: Told):
    world.create(segments=1, retention=RetentionPolicy.by_size(100))
    told.write(60, 30)
    view = told.describe()
    assert (view.kept_bytes, view.retention_set, view.case, view.why) == (
        90,
        2,
        RetentionCase.NOT_ENOUGH,
        WORDS[RetentionCase.NOT_ENOUGH],
    )
    assert view.next_cut_time_ms == world.clock.now_ms() + PERIOD_MS
    assert (view.next_cut, view.next_bytes) == (None, 0)
    told.write(80)
    after_truncation = told.describe()
    assert after_truncation.kept_bytes == 110
    assert after_truncation.oldest_event_ms == world.clock.now_ms() - 2 * PERIOD_MS
    world.append(0, 300)
    assert told.describe().kept_bytes == 410
    world.update(segments=1, retention=RetentionPolicy.by_size(50))
    coming = told.describe()
    assert (coming.case, coming.next_cut.offsets, coming.next_bytes) == (RetentionCase.NO_SUBSCRIBERS, {0: 90}, 30)
    assert coming.next_cut_time_ms == world.clock.now_ms()
    told.subscribers.register("s", "t", "group", 0)
    waiting = told.describe()
    assert (waiting.subscribers, waiting.case, waiting.next_bytes) == (1, RetentionCase.WITHIN_LIMITS, 0)


def test_what_cannot_go_is_said(world: StreamWorld, told: Told):
    world.create(segments=1, retention=RetentionPolicy.by_size(100))
    told.write(60, 120)
    world.update(segments=1, retention=RetentionPolicy.by_size(110))
    assert told.describe().kept_bytes == 120
    world.truncate({0: 100})
    view = told.describe()
    assert (view.kept_bytes, view.case) == (80, RetentionCase.NOT_ENOUGH)
    told.write(200)
    world.truncate({0: 180})
    assert told.describe().why in (NOTHING_YET, WORDS[RetentionCase.NOT_ENOUGH])


def test_what_a_round_costs(world: StreamWorld, told: Told):
    """A bucket of one stream: to find it and to hold the lease it takes a query, a read and two writes of these."""
    world.create(segments=2, retention=RetentionPolicy.by_size(1_000))
    lease = {QUERY: 1, READ: 1, WRITE: 2}
    told.round()
    assert told.cost_of_a_round() == {**lease, READ: 2, INFOS: 1, TRANSACTION: 1}, "nothing was ever written"
    world.append(0, 100)
    assert told.cost_of_a_round() == {**lease, QUERY: 2, READ: 2, INFOS: 1, TRANSACTION: 1}, "the first cut"
    world.append(0, 100)
    assert told.cost_of_a_round() == {**lease, QUERY: 2, READ: 3, INFOS: 1, TRANSACTION: 1}, "another cut"
    assert told.cost_of_a_round() == {**lease, QUERY: 2, READ: 3, INFOS: 1, TRANSACTION: 1}, "nothing new"
    world.append(0, 1_000)
    cost = told.cost_of_a_round()
    assert cost == {**lease, QUERY: 2, READ: 5, INFOS: 1, TRANSACTION: 2, SEND: 1}, "a cut and a truncation"


def test_what_an_idle_bucket_costs(world: StreamWorld, told: Told):
    world.create(segments=1, retention=RetentionPolicy.by_size(1_000))
    told.round()
    world.calls.counts.clear()
    for bucket in range(topology.BUCKET_COUNT):
        told.ticks.run(bucket)
    assert dict(world.calls.counts) == {QUERY: topology.BUCKET_COUNT}


def test_a_round_does_not_cost_more_with_more_epochs(world: StreamWorld, told: Told):
    world.create(segments=1, retention=RetentionPolicy.by_size(10**9))
    for epoch in range(150):
        world.append(epoch << 32 | epoch, 10)
        world.scale([epoch << 32 | epoch], [0.0, 1.0])
        told.round()
    world.append(150 << 32 | 150, 10)
    world.scale([150 << 32 | 150], [0.0, 1.0])
    cost = Told(world).cost_of_a_round()
    assert cost == {QUERY: 2, READ: 4, WRITE: 2, INFOS: 1, TRANSACTION: 1}, "the size of the segment sealed since"


def test_what_the_calls_cost(world: StreamWorld, told: Told):
    world.create(segments=2, retention=RetentionPolicy.by_size(1_000))
    told.write(500, 700)
    calls: dict[str, tuple[Any, dict[str, int]]] = {
        "describe": (told.describe, {READ: 3, QUERY: 2, INFOS: 1}),
        "register": (lambda: told.subscribers.register("s", "t", "g", 0), {READ: 2, TRANSACTION: 1}),
        "register again": (lambda: told.subscribers.register("s", "t", "g", 0), {READ: 2}),
        "publish": (lambda: told.subscribers.update_stream_cut("s", "t", "g", 0, {0: 9, 1: 0}), {READ: 2, WRITE: 1}),
        "publish again": (lambda: told.subscribers.update_stream_cut("s", "t", "g", 0, {0: 9, 1: 0}), {READ: 2}),
        "get": (lambda: told.subscribers.get_subscriber("s", "t", "g"), {READ: 2}),
        "list": (lambda: told.subscribers.list_subscribers("s", "t", 100), {READ: 1, QUERY: 1}),
        "unregister": (lambda: told.subscribers.unregister("s", "t", "g", 0), {READ: 2, WRITE: 1}),
    }
    found = {}
    for name, (call, _) in calls.items():
        world.calls.counts.clear()
        call()
        found[name] = dict(world.calls.counts)
    assert found == {name: cost for name, (_, cost) in calls.items()}


@pytest.mark.parametrize(
    ("least", "read", "searches"), [(100, {0: 555, 1: 0}, 2), (500, {0: 1_000, 1: 0}, 3), (500, {0: 995, 1: 400}, 3)]
)
def test_subscribers_make_a_round_read_a_few_cuts(
    world: StreamWorld, told: Told, least: int, read: dict[int, int], searches: int
):
    """Within limits, and in both parts of the key space on other sides of the minimum. A search is in 128 cuts."""
    world.create(segments=2, retention=RetentionPolicy.by_size(least, 10 * least))
    told.subscribers.register("s", "t", "g", 0)
    world.append(1, 400)
    told.write(*[10] * 100)
    told.subscribers.update_stream_cut("s", "t", "g", 0, read)
    world.append(0, 10)
    cost = told.cost_of_a_round()
    assert cost[READ] <= 3 + 7 * searches
    assert cost[QUERY] == 2
