"""What retention says of a stream, and what all its calls and ticks cost."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from headrace import topology
from headrace.controller.services.retention_service import (
    NO_POLICY,
    NOTHING_YET,
    TAIL_CHECK_S,
    RetentionService,
    SubscriberService,
)
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.model.errors import HeadraceError, IllegalStateError, InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.retention import WORDS, RetentionCase
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import Stream
from headrace.ports.clock import time_left_s, time_limit

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
    now_ms = world.clock.now_ms()
    assert (view.oldest_cut_ms, view.newest_cut_ms, view.next_cut_time_ms) == (
        now_ms - PERIOD_MS,
        now_ms,
        now_ms + PERIOD_MS,
    )
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


S2, S3 = 1 << 32 | 2, 1 << 32 | 3
MERGED = 2 << 32 | 4


@pytest.fixture
def subscribers(world: StreamWorld) -> SubscriberService:
    """Over stream `t` of two segments: 0 has 100 bytes, 1 has 50."""
    world.create(segments=2)
    world.append(0, 100)
    world.append(1, 50)
    return SubscriberService(world.store, world.clock)


def _code(kind: type[HeadraceError], call: Any) -> str:
    with pytest.raises(kind) as error:
        call()
    return error.value.specific_code


def test_a_new_subscriber_needs_everything(world: StreamWorld, subscribers: SubscriberService):
    made = subscribers.register("s", "t", "group", 0)
    assert made == subscribers.get_subscriber("s", "t", "group")
    assert (made.generation, made.position.cut.offsets, made.updated_ms) == (0, {0: 0, 1: 0}, world.clock.now_ms())


def test_it_begins_at_the_head_or_where_it_says(world: StreamWorld, subscribers: SubscriberService):
    world.truncate({0: 30, 1: 20})
    assert subscribers.register("s", "t", "a", 0).position.cut.offsets == {0: 30, 1: 20}
    assert subscribers.register("s", "t", "b", 0, {0: 40, 1: 50}).position.cut.offsets == {0: 40, 1: 50}


def test_registering_again_changes_nothing(world: StreamWorld, subscribers: SubscriberService):
    subscribers.register("s", "t", "group", 2)
    subscribers.update_stream_cut("s", "t", "group", 2, {0: 10, 1: 10})
    before = world.everything()
    again = subscribers.register("s", "t", "group", 2, {0: 0, 1: 0})
    assert again.position.cut.offsets == {0: 10, 1: 10}
    assert world.everything() == before


def test_a_later_generation_takes_over(subscribers: SubscriberService):
    subscribers.register("s", "t", "group", 0)
    subscribers.update_stream_cut("s", "t", "group", 0, {0: 10, 1: 10})
    assert subscribers.register("s", "t", "group", 1).position.cut.offsets == {0: 10, 1: 10}
    assert subscribers.register("s", "t", "group", 2, {0: 5, 1: 5}).position.cut.offsets == {0: 5, 1: 5}
    mismatch = "generation_mismatch"
    assert _code(IllegalStateError, lambda: subscribers.register("s", "t", "group", 1)) == mismatch
    assert _code(IllegalStateError, lambda: subscribers.unregister("s", "t", "group", 1)) == mismatch
    cut = {0: 20, 1: 20}
    for generation in (1, 3):
        update = lambda generation=generation: subscribers.update_stream_cut("s", "t", "group", generation, cut)  # noqa: E731
        assert _code(IllegalStateError, update) == mismatch


def test_positions_move_on_only(world: StreamWorld, subscribers: SubscriberService):
    subscribers.register("s", "t", "group", 0)
    subscribers.update_stream_cut("s", "t", "group", 0, {0: 50, 1: 10})
    before = world.everything()
    for cut in ({0: 49, 1: 50}, {0: 50, 1: 9}, {0: 0, 1: 0}):
        refused = lambda cut=cut: subscribers.update_stream_cut("s", "t", "group", 0, cut)  # noqa: E731
        assert _code(InvalidRequestError, refused) == "stream_cut_not_valid"
    subscribers.update_stream_cut("s", "t", "group", 0, {0: 50, 1: 10})
    assert world.everything() == before, "the same cut again writes nothing"


@pytest.mark.parametrize(
    "cut", [{}, {0: 1}, {0: 1, 1: 1, S2: 0}, {0: 101, 1: 0}, {7: 0}, {-5: 1, 1: 0}, {0: -2, 1: 0}, {9 << 32: 0}]
)
def test_what_is_no_cut_of_the_stream_is_refused(
    world: StreamWorld, subscribers: SubscriberService, cut: dict[int, int]
):
    world.scale([0], [0.0, 0.2, 0.5])
    subscribers.register("s", "t", "group", 0)
    before = world.everything()
    update = lambda: subscribers.update_stream_cut("s", "t", "group", 0, cut)  # noqa: E731
    assert _code(InvalidRequestError, update) == "stream_cut_not_valid"
    start = lambda: subscribers.register("s", "t", "other", 0, cut)  # noqa: E731
    assert _code(InvalidRequestError, start) == "stream_cut_not_valid"
    assert world.everything() == before


def test_a_segment_not_reached_yet_gives_way_to_what_it_follows(world: StreamWorld, subscribers: SubscriberService):
    """Java readers name a merged segment with -1 while one of the two that it follows is still being read."""
    subscribers.register("s", "t", "group", 0)
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(S3, 7)
    world.scale([S3, 1], [0.2, 1.0])
    updated = subscribers.update_stream_cut("s", "t", "group", 0, {S2: 0, MERGED: -1, 1: 30})
    assert updated.position.cut.offsets == {S2: 0, S3: 7, 1: 30}
    updated = subscribers.update_stream_cut("s", "t", "group", 0, {S2: 0, MERGED: 0})
    assert updated.position.cut.offsets == {S2: 0, MERGED: 0}


def test_who_is_unknown_is_told_so(subscribers: SubscriberService):
    cut = {0: 0, 1: 0}
    unknown = "subscriber_not_found"
    assert _code(NotFoundError, lambda: subscribers.update_stream_cut("s", "t", "group", 0, cut)) == unknown
    assert _code(NotFoundError, lambda: subscribers.get_subscriber("s", "t", "group")) == unknown
    subscribers.unregister("s", "t", "group", 0)
    for call in (
        lambda: subscribers.register("s", "none", "group", 0),
        lambda: subscribers.update_stream_cut("s", "none", "group", 0, cut),
        lambda: subscribers.list_subscribers("s", "none", 10),
        lambda: subscribers.unregister("s", "none", "group", 0),
    ):
        assert _code(NotFoundError, call) == "not_found"


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a/b/c", "a b", "x" * 300, "ü"])
def test_what_can_be_no_name_is_refused(subscribers: SubscriberService, name: str):
    assert _code(InvalidRequestError, lambda: subscribers.register("s", "t", name, 0)) == "invalid_name"


def test_lists_come_in_pages(subscribers: SubscriberService):
    for name in ("b", "a", "other/a", "c"):
        subscribers.register("s", "t", name, 0)
    first = subscribers.list_subscribers("s", "t", 2)
    assert [subscriber.name for subscriber in first.items] == ["a", "b"]
    rest = subscribers.list_subscribers("s", "t", 10, first.next_after)
    assert ([subscriber.name for subscriber in rest.items], rest.next_after) == (["c", "other/a"], None)
    subscribers.unregister("s", "t", "a", 0)
    subscribers.unregister("s", "t", "a", 0)
    assert [subscriber.name for subscriber in subscribers.list_subscribers("s", "t", 10).items] == ["b", "c", "other/a"]


@pytest.mark.parametrize("call", ["read", "write", "transaction"])
def test_a_lost_race_is_settled_by_reading_again(world: StreamWorld, subscribers: SubscriberService, call: str):
    """Another process registers it and publishes while this one is about to."""
    other = SubscriberService(world.bare_store, world.clock)

    def first() -> None:
        other.register("s", "t", "group", 0)
        other.update_stream_cut("s", "t", "group", 0, {0: 10, 1: 10})

    with world.calls.overtaken(call, first):
        assert subscribers.register("s", "t", "group", 0).generation == 0
        updated = subscribers.update_stream_cut("s", "t", "group", 0, {0: 20, 1: 20})
    assert updated.position.cut.offsets == {0: 20, 1: 20}


def test_nobody_registers_with_a_stream_that_is_gone(world: StreamWorld, subscribers: SubscriberService):
    def gone() -> None:
        world.seal()
        world.delete()

    with world.calls.overtaken("transaction", gone):
        assert _code(NotFoundError, lambda: subscribers.register("s", "t", "group", 0)) == "not_found"
    assert [sort for _, sort in world.everything() if sort.startswith("subscriber/")] == []


def test_a_store_that_is_away_does_not_delay_a_position(world: StreamWorld, subscribers: SubscriberService):
    """The reader that publishes waits for the answer, and the function must have time left to note the position."""

    def store_is_away(_stream: Stream, _cut: StreamCut) -> None:
        waited_s = time_left_s(20.0)
        world.clock.advance(int(waited_s * 1000))
        raise UnavailableError(f"no answer within {waited_s} s")

    subscribers.register("s", "t", "group", 0)
    asking = SubscriberService(world.store, world.clock, store_is_away)
    began_s = world.clock.monotonic_s()
    with time_limit(world.clock, 21.0):
        asking.update_stream_cut("s", "t", "group", 0, {0: 10, 1: 10})
        assert time_left_s() > 21.0 - TAIL_CHECK_S - 1
    assert world.clock.monotonic_s() - began_s <= TAIL_CHECK_S
    assert subscribers.get_subscriber("s", "t", "group").position.cut.offsets == {0: 10, 1: 10}


def test_position_beyond_the_tail_is_refused(world: StreamWorld, subscribers: SubscriberService):
    """Retention would delete events that no reader has seen. Where a subscriber begins by itself is not asked for."""
    asked: list[tuple[str, dict[int, int]]] = []

    def refuse(stream: Stream, cut: StreamCut) -> None:
        asked.append((stream.scoped_name, dict(cut.offsets)))
        raise InvalidRequestError("beyond the tail")

    asking = SubscriberService(world.store, world.clock, refuse)
    asking.register("s", "t", "group", 0)
    assert asked == []
    before = world.everything()
    beyond = {0: 10, 1: 10}
    for call in (
        lambda: asking.register("s", "t", "new", 0, beyond),
        lambda: asking.update_stream_cut("s", "t", "group", 0, beyond),
    ):
        assert _code(InvalidRequestError, call) == "stream_cut_not_valid"
    assert asked == [("s/t", beyond)] * 2
    assert world.everything() == before
